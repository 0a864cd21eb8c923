"""Where epochs begin."""

from __future__ import annotations

import time

__all__ = ["wall_epoch"]


def wall_epoch() -> int:
    """Least epoch of a term that begins now: the wall clock in milliseconds.

    A term always has a higher epoch than the one before it on its record. This makes it higher too where that record
    was lost, or where the limiter before kept none, unless the clock was set back in between.
    """
    return max(1, time.time_ns() // 1_000_000)
