"""What a pool is doing at one instant, as a frozen fact."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PoolStatistics"]


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Counters count since the pool was opened."""

    num_workers: int
    queued: int
    """Runs that wait for a worker."""
    acquiring: int
    """Runs that have a worker and wait for their lease."""
    running: int
    """Functions that run, those whose callers have given up included."""
    returned_total: int
    """Functions that returned."""
    raised_total: int
    """Functions that raised."""
    timed_out_total: int
    """Runs that were longer than their timeout."""
    cancelled_total: int
    """Runs whose callers were cancelled while the function ran."""
    died_total: int
    """Worker processes that ended by themselves while they ran a function."""
    lost_total: int
    """Runs that were ended because their lease was lost."""
    started_total: int
    """Worker processes started."""
