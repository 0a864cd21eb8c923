"""Checks that grants keep to a rate: between any two there are no more than the burst plus what the time between
allows."""

from __future__ import annotations

_SLACK = 1e-6


class Pace:
    """Counts leases from one moment on, without remembering each."""

    def __init__(self, rate: float, burst: int, now: float, *, saved: float) -> None:
        """`saved`: the most that may be there at the beginning."""
        self._rate = rate
        self._burst = burst
        self._count = 0
        self._most = saved - rate * now
        """The highest count that is allowed at time t is this plus rate x t."""

    def __str__(self) -> str:
        return f"{self._rate:g} leases a second with bursts of {self._burst}"

    def allows(self, leases: int, now: float) -> bool:
        """Says whether so many leases may be granted now, after the earlier ones."""
        self._most = min(self._most, self._count + self._burst - self._rate * now)
        self._count += leases
        return self._count <= self._most + self._rate * now + _SLACK
