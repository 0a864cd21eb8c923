"""Public test kit: a clock that moves only when told to."""

from __future__ import annotations


class ManualClock:
    """A `fairbox.clock.Clock` for tests: `advance()` is the only thing that moves it."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Moves the clock forward by `seconds` (>= 0) and returns the new time."""
        if seconds < 0:
            raise ValueError(f"seconds is {seconds}, must be >= 0")
        self._now += seconds
        return self._now
