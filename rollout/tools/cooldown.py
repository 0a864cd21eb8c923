"""How long to leave a service alone that fails, as a pure state machine: ends of attempts go in, a pause comes out.

It is shared by all who use the service in one process. Without it thousands of calls that wait behind each other would
each find the same failure within milliseconds, and use up every lease and every repeat of a run meanwhile.
"""

from __future__ import annotations

__all__ = ["Cooldown"]

FIRST_S = 0.1
LAST_S = 5.0
"""The longest pause: a service that is back is found within this time."""


class Cooldown:
    """The pause doubles with each failure in a row. Attempts that were under way together count as one. Times are
    monotonic seconds."""

    __slots__ = ("_failures", "_noted", "_until")

    def __init__(self) -> None:
        self._failures = 0
        self._noted = float("-inf")
        """When the last failure that counts was noted."""
        self._until = float("-inf")

    @property
    def failures(self) -> int:
        """How many in a row count."""
        return self._failures

    def succeeded(self) -> None:
        """The service works: nobody need wait."""
        self._failures, self._until = 0, float("-inf")

    def failed(self, began: float, now: float) -> None:
        """An attempt that began then has failed now, and it was the service's fault."""
        if began < self._noted:
            return
        self._noted = now
        self._until = now + min(LAST_S, FIRST_S * 2.0 ** min(self._failures, 30))
        self._failures += 1

    def pause(self, now: float) -> float:
        """How long to wait before the next attempt, seconds."""
        return max(0.0, self._until - now)
