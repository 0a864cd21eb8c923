"""A clock whose hands the test moves."""

from __future__ import annotations

from fairbox.clock import MonotonicClock


class FakeClock(MonotonicClock):
    """`time` is what `now()` says."""

    def __init__(self, time: float = 0.0) -> None:
        self.time = time

    def now(self) -> float:
        return self.time
