"""The requests that wait, run and end in a batch: a pure state machine, with time as an argument.

Invariants: requests start in the order of their arrival; at most `max_running` run, in rows 0 to running - 1 without
gap; at most `max_queued` wait; a request that was removed holds neither a row nor a place in the queue.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


class QueueFullError(Exception):
    """As many requests wait as may."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The copy that the removal of a row asks of its owner: row `source` to row `target`; equal if nothing moves."""

    source: int
    target: int


class BatchSchedule:
    """Names in, names and rows out."""

    def __init__(self, *, max_running: int, max_queued: int) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._waiting: OrderedDict[str, float] = OrderedDict()
        """Name -> when it stops waiting."""
        self._rows: list[str] = []

    @property
    def running(self) -> tuple[str, ...]:
        """Names by row."""
        return tuple(self._rows)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def submit(self, name: str, *, expires: float) -> None:
        """Puts a request at the end of the queue. Raises QueueFullError."""
        assert name not in self._waiting
        assert name not in self._rows
        if len(self._waiting) >= self._max_queued:
            raise QueueFullError
        self._waiting[name] = expires

    def expire(self, now: float) -> list[str]:
        """Removes and returns the waiting requests whose time is over."""
        late = [name for name, expires in self._waiting.items() if expires <= now]
        for name in late:
            del self._waiting[name]
        return late

    def admit(self) -> tuple[str, int] | None:
        """Starts the oldest waiting request in the next row; None when none waits or all rows are taken."""
        if not self._waiting or len(self._rows) >= self._max_running:
            return None
        name, _ = self._waiting.popitem(last=False)
        self._rows.append(name)
        return name, len(self._rows) - 1

    def remove(self, name: str) -> Moved | None:
        """Takes a request out, wherever it is. The last row fills the gap of a running one; unknown names are fine."""
        if self._waiting.pop(name, None) is not None or name not in self._rows:
            return None
        target, source = self._rows.index(name), len(self._rows) - 1
        self._rows[target] = self._rows[source]
        self._rows.pop()
        return Moved(source, target)
