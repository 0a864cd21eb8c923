"""When the wall time of what serves is over, where the server keeps it. Pure.

The rule is that of the init for programs: what it waited for a processor is not charged, up to a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from executor_service.sandbox.inside.watch import PATIENCE

__all__ = ["WallTime"]


@dataclass(frozen=True, slots=True)
class WallTime:
    """Of what began at `began` (monotonic seconds) and may take `limit_s`."""

    began: float
    limit_s: float

    @property
    def latest(self) -> float:
        """It is over by then, however long it waited."""
        return self.began + self.limit_s * PATIENCE

    def left_s(self, now: float, starved_s: float) -> float:
        """Time that is left, as far as is known of the waiting; 0 or less: it is over."""
        return min(self.began + self.limit_s + starved_s, self.latest) - now
