"""How loops are spread over a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass

from fairbox.errors import FieldError, FieldErrors
from fairbox.settings import setting

__all__ = ["RaySpread"]


@dataclass(frozen=True)
class RaySpread:
    """Settings of `--ray`. Raises FieldErrors."""

    workers: int = setting(2, help="Workers; Ray spreads them over the machines.")
    capacity: int = setting(64, help="Trajectories that a worker runs at once.")
    num_cpus: float = setting(1.0, help="Processors that Ray keeps for a worker.")
    num_gpus: float = setting(0.0, help="The same for GPUs; 0 where engines are servers.")
    restarts: int = setting(8, help="How often lost workers are started again over the whole run.")
    start_within_s: float = setting(600.0, help="Longest time until a worker is ready: placement, loading the model.")
    ping_every_s: float = setting(5.0, help="Between two questions whether a worker is alive, seconds.")
    ping_within_s: float = setting(60.0, help="A worker that does not answer for so long is killed, and is lost.")
    wait_s: float = setting(600.0, help="Longest wait of a trajectory for a worker, seconds; then it is masked.")

    def __post_init__(self) -> None:
        errors = [
            FieldError(f"spread.{name}", f"is {getattr(self, name)}, must be at least {least}")
            for name, least in (("workers", 1), ("capacity", 1), ("restarts", 0), ("num_cpus", 0), ("num_gpus", 0))
            if not getattr(self, name) >= least
        ]
        errors += [
            FieldError(f"spread.{name}", f"is {getattr(self, name)}, must be positive")
            for name in ("start_within_s", "ping_every_s", "ping_within_s", "wait_s")
            if not 0 < getattr(self, name) < float("inf")
        ]
        if errors:
            raise FieldErrors(errors)
