"""Contexts whose keys and values are kept for the requests that extend them: a bounded, least-recently-used store.

The examples of a prompt are shared by all trajectories, and each turn of a trajectory extends the one before, so most
of a context has been computed already. What is kept is opaque here; entries are found by their ids alone.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Prefix", "PrefixStore"]

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Prefix(Generic[T]):
    """A context that is kept."""

    ids: array[int]
    value: T
    size: int


class PrefixStore(Generic[T]):
    """At most `max_bytes` of values; the one unused for longest goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: list[Prefix[T]] = []
        """From least to most recently used."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, ids: tuple[int, ...]) -> tuple[int, T] | None:
        """(length, value) of the entry that shares the longest prefix with `ids`, the last id left out.

        The last id is left out because its logits are wanted, so it has to be computed.
        """
        wanted = array("l", ids[:-1])
        best, length = None, 0
        for entry in self._entries:
            shared = _common(entry.ids, wanted)
            if shared > length:
                best, length = entry, shared
        if best is None:
            return None
        self._entries.remove(best)
        self._entries.append(best)
        return length, best.value

    def add(self, ids: tuple[int, ...], value: T, size: int) -> None:
        """Keeps a context. An entry that is a prefix of it is replaced; one that extends it makes this call a no-op."""
        new = array("l", ids)
        if size > self._max_bytes:
            return
        for entry in list(self._entries):
            shared = _common(entry.ids, new)
            if shared == len(new):
                return
            if shared == len(entry.ids):
                self._drop(entry)
        self._entries.append(Prefix(new, value, size))
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._drop(self._entries[0])

    def clear(self) -> None:
        """Forgets everything, as new weights require."""
        self._entries.clear()
        self.bytes = 0

    def _drop(self, entry: Prefix[T]) -> None:
        self._entries.remove(entry)
        self.bytes -= entry.size


def _common(left: array[int], right: array[int]) -> int:
    """Length of the common prefix, by bisection over slices, which compare at C speed."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
