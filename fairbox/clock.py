"""Time as an argument: whoever needs the clock takes one of these.

Only monotonic seconds are used for decisions; wall-clock time appears in dumps and logs alone.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic seconds. The zero point has no meaning; only differences do."""

    def now(self) -> float:
        """Seconds since an arbitrary start, never going backwards."""
        ...


class MonotonicClock:
    """The machine's monotonic clock (comparable between processes of one host)."""

    def now(self) -> float:
        return time.monotonic()
