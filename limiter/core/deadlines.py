"""Everything that happens by itself at a time: a heap for each type of item.

Invariants: each item has at most one deadline in force; moving or removing one costs no search, because the heap keeps
the stale entry and skips it later. In no heap do stale entries outnumber live ones by more than a constant.

One heap for all would keep as many ended leases in memory as requests wait, or as ends of requests are remembered, and
the core would walk through all of that memory again and again: with 9,000 of them a pair cost half as much again.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

NEVER = float("inf")
"""The deadline of an item that has none."""
_SLACK = 64
"""Stale entries that are always tolerated, so that a small heap is not rebuilt at every step."""


class Expiring(Protocol):
    """An item that can have a deadline; the field belongs to `Deadlines`."""

    deadline: float


T = TypeVar("T", bound=Expiring)


class _Heap(Generic[T]):
    """Deadlines of items of one type."""

    __slots__ = ("entries", "live")

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, T]] = []
        self.live = 0

    def first(self) -> tuple[float, int, T] | None:
        """The earliest in force."""
        entries = self.entries
        while entries:
            entry = entries[0]
            if entry[2].deadline == entry[0]:
                return entry
            heapq.heappop(entries)
        return None


class Deadlines(Generic[T]):
    """Deadlines of items, earliest first; among equal ones, the one set first."""

    def __init__(self) -> None:
        self._heaps: dict[type[T], _Heap[T]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Entries in memory, stale ones included."""
        return sum(len(heap.entries) for heap in self._heaps.values())

    def set(self, item: T, when: float) -> None:
        """Gives `item` a deadline, in place of the one it had."""
        heap = self._heaps.get(type(item))
        if heap is None:
            heap = self._heaps[type(item)] = _Heap()
        if item.deadline == NEVER:
            heap.live += 1
        item.deadline = when
        self._count += 1
        heapq.heappush(heap.entries, (when, self._count, item))
        if len(heap.entries) > 2 * heap.live + _SLACK:
            heap.entries = [entry for entry in heap.entries if entry[2].deadline == entry[0]]
            heapq.heapify(heap.entries)

    def clear(self, item: T) -> None:
        """Takes the deadline of `item` away, if it has one."""
        if item.deadline != NEVER:
            self._heaps[type(item)].live -= 1
            item.deadline = NEVER

    def due(self, now: float) -> bool:
        """Says whether a deadline may have come. Looks at stale entries too, which `next()` would take out one by
        one: far more than half of all deadlines never come, and `set()` drops those together, for less (1.5 us of a
        pair)."""
        return any(heap.entries and heap.entries[0][0] <= now for heap in self._heaps.values())

    def next(self) -> float | None:
        """The earliest deadline, or None."""
        entry = self._first()
        return entry[0] if entry is not None else None

    def pop_due(self, now: float) -> T | None:
        """Takes out an item whose deadline has come, or answers None."""
        entry = self._first()
        if entry is None or entry[0] > now:
            return None
        item = entry[2]
        self.clear(item)  # which leaves a stale entry at the head of its heap
        return item

    def _first(self) -> tuple[float, int, T] | None:
        entries = [entry for heap in self._heaps.values() if (entry := heap.first()) is not None]
        return min(entries, key=lambda entry: entry[:2], default=None)
