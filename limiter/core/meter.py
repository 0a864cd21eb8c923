"""How fast a bucket grants and how long requests wait: for status, estimates and retry delays."""

from __future__ import annotations

from collections import deque

__all__ = ["GrantMeter"]

_WAITS = 1024
"""Waits that percentiles are taken over."""
_WINDOW_S = 60
"""Whole seconds that the rate of grants is taken over."""

_ESTIMATE_AGE_S = 1.0


class GrantMeter:
    """Counts grants by second and keeps the latest waits. Memory is constant."""

    def __init__(self, now: float) -> None:
        self._started = now
        self._waits: deque[float] = deque(maxlen=_WAITS)
        self._seconds: deque[tuple[int, int]] = deque()
        self._second = int(now)
        self._in_second = 0
        self._estimate = 0.0
        self._estimated_at = now

    def record(self, now: float, waited: float) -> None:
        """One grant after `waited` seconds in the queue."""
        second = int(now)
        if second != self._second:
            self._roll(second)
        self._in_second += 1
        self._waits.append(waited)

    def rate(self, now: float) -> float:
        """Grants per second over the last minute, or over the time since the start where that is shorter."""
        self._roll(int(now))
        total = self._in_second + sum(count for _, count in self._seconds)
        return total / max(1.0, min(_WINDOW_S, now - self._started))

    def estimate(self, now: float) -> float:
        """`rate()`, at most a second old: cheap enough for every request."""
        if now >= self._estimated_at + _ESTIMATE_AGE_S:
            self._estimate, self._estimated_at = self.rate(now), now
        return self._estimate

    def percentile(self, share: float) -> float:
        """The wait that `share` (0 to 1) of the latest grants did not exceed; 0 when there were none."""
        ordered = sorted(self._waits)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def _roll(self, second: int) -> None:
        if second != self._second:
            if self._in_second:
                self._seconds.append((self._second, self._in_second))
            self._second, self._in_second = second, 0
        while self._seconds and self._seconds[0][0] <= second - _WINDOW_S:
            self._seconds.popleft()
