"""The wall time of what serves, where the server keeps it.

The rule is that of the init for programs: what it waited for a processor is not charged, up to a bound.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from executor_service.guest.watch import PATIENCE
from fairbox.clock import Clock

_SAID_WITHIN_S = 5.0
"""The init says at once how long something has waited for a processor; if it is starved too, in a moment."""
_SHORTEST_S = 0.01
"""Between two such questions."""


@dataclass(slots=True)
class WallTime:
    """Wall time of what began at `began` and may take `limit_s`. `waited_s(timeout_s)` asks its init how long it has
    waited for a processor, in seconds; 0 if that is not known in time."""

    clock: Clock
    limit_s: float
    waited_s: Callable[[float], Awaitable[float]]
    began: float
    _starved_s: float = 0.0

    def left_s(self) -> float:
        """Time that is left, as far as is known of the waiting; 0 or less: it is over."""
        return min(self.began + self.limit_s + self._starved_s, self._latest) - self.clock.now()

    async def more_s(self) -> float:
        """Time that is left for what it has waited, when the rest is over; 0: none."""
        patience_s = self._latest - self.clock.now()
        if patience_s > 0:
            self._starved_s = max(self._starved_s, await self.waited_s(min(patience_s, _SAID_WITHIN_S)))
        left_s = self.left_s()
        return max(left_s, _SHORTEST_S) if left_s > 0 else 0.0

    @property
    def _latest(self) -> float:
        """It is over by then, however long it waited."""
        return self.began + self.limit_s * PATIENCE
