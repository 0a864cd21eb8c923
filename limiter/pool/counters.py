"""What a pool counts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from limiter.pool.outcome import Outcome
from limiter.pool.statistics import PoolStatistics

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """As in `PoolStatistics`."""

    queued: int = 0
    acquiring: int = 0
    running: int = 0
    returned_total: int = 0
    raised_total: int = 0
    timed_out_total: int = 0
    cancelled_total: int = 0
    died_total: int = 0
    lost_total: int = 0
    started_total: int = 0

    @contextlib.contextmanager
    def counted(self, name: str) -> Iterator[None]:
        """Counts one for the time of the block."""
        setattr(self, name, getattr(self, name) + 1)
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) - 1)

    def ended(self, outcome: Outcome) -> Outcome:
        """Counts the function's own end."""
        if outcome.error is None:
            self.returned_total += 1
        else:
            self.raised_total += 1
        return outcome

    def facts(self, num_workers: int) -> PoolStatistics:
        """The same, frozen."""
        return PoolStatistics(num_workers=num_workers, **asdict(self))
