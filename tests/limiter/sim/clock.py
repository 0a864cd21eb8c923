"""Clocks of simulated machines: each runs at a rate of its own and shows another time than its neighbours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineClock:
    """A monotonic clock as a linear function of true time; it outlives the processes of its machine."""

    rate: float
    """Seconds that it shows per true second."""
    offset: float
    """Reading at true time 0."""

    def at(self, true: float) -> float:
        """Reading of the clock at a true time."""
        return self.offset + self.rate * true

    def when(self, shown: float) -> float:
        """The true time at which it shows something."""
        return (shown - self.offset) / self.rate
