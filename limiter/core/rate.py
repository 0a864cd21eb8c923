"""A limit on grants per second, as the generic cell rate algorithm (ITU-T I.371): one instant instead of a counter.

The instant is when the bucket was empty. What it holds now follows from it, and so does when it will hold n: the very
number that a deadline is set to, so that nothing is lost to rounding when the deadline comes.
"""

from __future__ import annotations

__all__ = ["RateBucket"]


class RateBucket:
    """Fills with `rate` tokens a second up to `burst`. Starts empty, because whoever led before may just have given a
    whole burst. Never negative: take only what `ready_at` says is there."""

    __slots__ = ("_empty_at", "burst", "rate")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self._empty_at = now

    def ready_at(self, count: int) -> float:
        """When `count` tokens are there, at most `burst`; in the past when they are there already."""
        return self._empty_at + count / self.rate

    def available(self, now: float) -> float:
        """Tokens that are there."""
        return min(float(self.burst), max(0.0, (now - self._empty_at) * self.rate))

    def take(self, count: int, now: float) -> None:
        """Takes `count` tokens, which are there."""
        self._empty_at = max(self._empty_at, now - self.burst / self.rate) + count / self.rate

    def change(self, rate: float, burst: int, now: float) -> None:
        """From now on other numbers; what is there stays, up to the new burst."""
        there = self.available(now)
        self.rate, self.burst = rate, burst
        self._empty_at = now - min(there, burst) / rate
