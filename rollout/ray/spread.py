"""How loops are spread over a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass

from fairbox.errors import FieldError, FieldErrors
from fairbox.settings import setting

__all__ = ["RaySpread"]


@dataclass(frozen=True)
class RaySpread:
    """Settings of `--ray`. Raises FieldErrors."""

    workers: int = setting(2, help="Workers; Ray spreads them over the machines, and keeps a processor for each.")
    num_gpus: float = setting(0.0, help="GPUs that Ray keeps for a worker; 0 where engines are servers.")

    def __post_init__(self) -> None:
        errors = [
            FieldError(f"spread.{name}", f"is {getattr(self, name)}, must be at least {least}")
            for name, least in (("workers", 1), ("num_gpus", 0))
            if not least <= getattr(self, name) < float("inf")
        ]
        if errors:
            raise FieldErrors(errors)
