"""Everything that happens by itself at a time: one heap for the whole core.

Invariants: each item has at most one deadline in force; moving or removing one costs no search, because the heap keeps
the stale entry and skips it later. Stale entries never outnumber live ones by more than a constant.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

__all__ = ["NEVER", "Deadlines", "Expiring"]

NEVER = float("inf")
"""The deadline of an item that has none."""
_SLACK = 64
"""Stale entries that are always tolerated, so that a small heap is not rebuilt at every step."""


class Expiring(Protocol):
    """An item that can have a deadline; the field belongs to `Deadlines`."""

    deadline: float


T = TypeVar("T", bound=Expiring)


class Deadlines(Generic[T]):
    """Deadlines of items, earliest first; among equal ones, the one set first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._live = 0
        self._count = 0

    def set(self, item: T, when: float) -> None:
        """Gives `item` a deadline, in place of the one it had."""
        if item.deadline == NEVER:
            self._live += 1
        item.deadline = when
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, item))
        if len(self._heap) > 2 * self._live + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2].deadline == entry[0]]
            heapq.heapify(self._heap)

    def clear(self, item: T) -> None:
        """Takes the deadline of `item` away, if it has one."""
        if item.deadline != NEVER:
            self._live -= 1
            item.deadline = NEVER

    def due(self, now: float) -> bool:
        """Whether one may have come. Looks at stale entries too, which `next()` would take out one by one: far more
        than half of all deadlines never come, and `set()` drops those together, for less (1.5 us of a pair)."""
        heap = self._heap
        return bool(heap) and heap[0][0] <= now

    def next(self) -> float | None:
        """The earliest deadline, or None."""
        heap = self._heap
        while heap:
            when, _, item = heap[0]
            if item.deadline == when:
                return when
            heapq.heappop(heap)
        return None

    def pop_due(self, now: float) -> T | None:
        """Takes out an item whose deadline has come, or answers None."""
        when = self.next()
        if when is None or when > now:
            return None
        item = heapq.heappop(self._heap)[2]
        self.clear(item)
        return item
