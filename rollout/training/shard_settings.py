"""How the model that is trained is split over processes."""

from __future__ import annotations

from dataclasses import dataclass

from fairbox.config import setting
from fairbox.errors import ConfigError

__all__ = ["ShardSettings"]


@dataclass(frozen=True)
class ShardSettings:
    """Settings of `shards`."""

    count: int = setting(
        1, help="Processes that hold a part of the model each and train it together, over Ray; with cuda a GPU each."
    )
    num_cpus: float = setting(1.0, help="Processors that Ray keeps for each.")
    start_within_s: float = setting(900.0, help="Longest time until all have their part: placement, loading the model.")
    answer_within_s: float = setting(
        7200.0, help="Longest time of a training step, or of writing the weights; then the run ends."
    )

    def validate(self, device: str) -> None:
        """ConfigError naming the setting that is wrong. `device` is `policy.device`."""
        if self.count < 1:
            raise ConfigError(f"shards.count is {self.count}, must be at least 1")
        if not 0 <= self.num_cpus < float("inf"):
            raise ConfigError(f"shards.num_cpus is {self.num_cpus}, must be 0 or more and finite")
        for name in ("start_within_s", "answer_within_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"shards.{name} is {getattr(self, name)}, must be positive and finite")
        if self.count > 1 and device not in ("cpu", "cuda"):
            raise ConfigError(f"policy.device is {device!r}, must be cpu or cuda with shards.count above 1")
