"""The model that is trained, and how it is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fairbox.config import setting
from fairbox.errors import ConfigError

__all__ = ["PolicySettings"]


@dataclass(frozen=True)
class PolicySettings:
    """The model that is trained, and how it is computed."""

    dtype: str = setting("float32", help="float32, or bfloat16: computes in it, with weights and sums in float32.")
    device: str = setting("cpu", help="Device of torch: cpu, cuda, cuda:1.")
    lora_rank: int = setting(0, help="Rank of LoRA adapters, which are then all that is trained; 0: all weights are.")
    lora_alpha: float = setting(32.0, help="Their scale is this / lora_rank.")
    lora_targets: list[str] = setting(
        factory=lambda: ["all-linear"], help="Linear layers that get one, by the ends of their names."
    )
    micro_tokens: int = setting(4096, help="Tokens that are computed at once; bounds memory.")
    chunk_tokens: int = setting(512, help="Tokens whose logits are in memory at once.")
    recompute: bool = setting(False, help="Compute layers again in the backward pass: less memory, a third more time.")

    def validate(self) -> None:
        """ConfigError naming the setting that is wrong."""
        if self.dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"policy.dtype is {self.dtype!r}, must be one of: float32, bfloat16")
        for name, least in (("lora_rank", 0), ("micro_tokens", 1), ("chunk_tokens", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"policy.{name} is {getattr(self, name)}, must be at least {least}")
        if not 0 < self.lora_alpha < float("inf"):
            raise ConfigError(f"policy.lora_alpha is {self.lora_alpha}, must be positive")
        if not self.lora_targets:
            raise ConfigError("policy.lora_targets is empty, must name layers, or be [all-linear]")
        try:
            torch.device(self.device)
        except RuntimeError:
            raise ConfigError(f"policy.device is {self.device!r}, which is no device of torch") from None
