"""Decides how long a session waits between attempts to connect, and when those who wait lose patience.

A pure state machine: no tasks, no clock. Times are the caller's monotonic seconds.
"""

from __future__ import annotations

import random

_NEVER = float("inf")
_BACKOFF_FIRST_S = 0.05
_BACKOFF_LAST_S = 0.5
"""Below `Timing.client_return`: a restarted limiter waits that long for those who queued."""
_NEVER_THERE_S = 10.0
"""A limiter that was not reached by then may be none at all."""


class Reconnection:
    """One session's attempts. `unavailable_after`: seconds without the limiter after which waits fail; None: their
    queue timeouts decide, once the limiter was reached."""

    def __init__(self, unavailable_after: float | None, rng: random.Random) -> None:
        self.trouble = "it has not answered yet"
        """The reason why there is no connection."""
        self._unavailable_after = unavailable_after
        self._rng = rng
        self._backoff = _BACKOFF_FIRST_S
        self._down_since = _NEVER
        self._reached = False
        self._gone_away = ""
        self._retry_after = 0.0

    def start(self, now: float) -> None:
        """The first attempt is to be made."""
        self._down_since = now

    def attempt(self) -> None:
        """An attempt begins."""
        self._gone_away, self._retry_after = "", 0.0

    def welcomed(self) -> None:
        """The limiter has answered."""
        self._down_since, self._reached = _NEVER, True

    def sent_away(self, reason: str, retry_after: float) -> None:
        """The limiter says that it ends the connection, and when to come back."""
        self._gone_away, self._retry_after = reason, retry_after

    def failed(self, reason: str) -> None:
        """The connection was lost, or not made."""
        self.trouble = self._gone_away or reason

    def ended(self, now: float, *, welcomed: bool) -> None:
        """An attempt is over. `welcomed`: it had been of use."""
        if welcomed:
            self._backoff, self._down_since = _BACKOFF_FIRST_S, now

    def impatient(self, now: float) -> bool:
        """Says whether those who wait are to fail now."""
        after = self._unavailable_after
        if after is None:
            after = _NEVER if self._reached else _NEVER_THERE_S
        return now - self._down_since >= after

    def pause(self) -> float:
        """Seconds to wait before the next attempt; longer each time."""
        pause = max(self._retry_after, self._backoff) * self._rng.uniform(0.5, 1.0)
        self._backoff = min(2 * self._backoff, _BACKOFF_LAST_S)
        return pause
