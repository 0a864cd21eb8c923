"""Which compilation is done, by whom, and what is kept of it. Pure.

unknown -> BUILDING (one does it, others wait) -> kept (the least recently used go first) -> forgotten.

Invariants: a key is built by at most one at a time; one who leaves is forgotten at once, and when that was the builder,
the one who has waited longest builds next; what is kept is bounded by bytes, of which each entry costs some.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

__all__ = ["CompileCache", "CompileStatistics", "Known", "Turn"]

Key = TypeVar("Key")
Who = TypeVar("Who")
Value = TypeVar("Value")

_ENTRY_BYTES = 1024
"""What an entry costs beside its value; counted, so that many small ones are bounded too."""


class Turn(Enum):
    """What one who asks for an unknown key is to do."""

    BUILD = auto()
    """Build it, then say `built` or `leave`."""
    WAIT = auto()
    """Wait: `built` will name it, or `leave` of the builder will make it the next."""


@dataclass(frozen=True, slots=True)
class Known(Generic[Value]):
    """It was built before."""

    value: Value


@dataclass(frozen=True, slots=True)
class CompileStatistics:
    """The cache at one instant, and its counts since the start."""

    entries: int
    bytes: int
    building: int
    waiting: int
    hits: int
    """Asked for and kept, or built by another in the meantime."""
    built: int
    evicted: int


class CompileCache(Generic[Key, Who, Value]):
    """`Who` names one who asks; each asks for one key at a time."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes = 0
        self._building: dict[Key, tuple[Who, OrderedDict[Who, None]]] = {}
        self._hits = self._built = self._evicted = 0

    def ask(self, key: Key, who: Who) -> Known[Value] | Turn:
        """What `who` has to do to get `key`."""
        if key in self._kept:
            self._kept.move_to_end(key)
            self._hits += 1
            return Known(self._kept[key][0])
        if key in self._building:
            self._building[key][1][who] = None
            return Turn.WAIT
        self._building[key] = (who, OrderedDict())
        return Turn.BUILD

    def built(self, key: Key, value: Value, size: int, *, keep: bool) -> list[Who]:
        """The builder of `key` is done: who has waited for it. `keep`: the same would come out again."""
        _, waiting = self._building.pop(key)
        self._built += 1
        self._hits += len(waiting)
        if keep and size + _ENTRY_BYTES <= self._max_bytes:
            self._kept[key] = (value, size + _ENTRY_BYTES)
            self._bytes += size + _ENTRY_BYTES
            while self._bytes > self._max_bytes:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._bytes -= dropped
                self._evicted += 1
        return list(waiting)

    def leave(self, key: Key, who: Who) -> Who | None:
        """`who` no longer builds `key` or waits for it. Who has to build it now, if that changed."""
        if key not in self._building:
            return None
        builder, waiting = self._building[key]
        if who != builder:
            waiting.pop(who, None)
            return None
        if not waiting:
            del self._building[key]
            return None
        successor, _ = waiting.popitem(last=False)
        self._building[key] = (successor, waiting)
        return successor

    def statistics(self) -> CompileStatistics:
        return CompileStatistics(
            entries=len(self._kept),
            bytes=self._bytes,
            building=len(self._building),
            waiting=sum(len(waiting) for _, waiting in self._building.values()),
            hits=self._hits,
            built=self._built,
            evicted=self._evicted,
        )
