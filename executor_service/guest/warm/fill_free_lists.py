"""Fills what is free between the objects of a zygote, so that what a program makes lies side by side.

CPython gives new objects the places of those that were freed, which loading and exercising packages leaves all over its
memory: each one that a program takes would be a page to be copied for it. With none left, programs get whole pages.

Invariants: what fills a hole is never freed, and refers to nothing outside; of an interpreter that does not tell about
its holes none is filled.
"""

from __future__ import annotations

import os
import sys

from executor_service.guest.walls.syscalls import flush_c_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_COLUMNS = 5
"""Columns of the line about one size: class, size, pools, blocks in use, blocks that are free."""
_MOST = 1 << 20
"""Bytes of the report; it has 6 KiB."""
_BARE, _NUMBER = 16, 32
"""Bytes that an object() and a small int take; those that bytes() makes begin above."""
_held: list[object] = []


def fill() -> int:
    """In the zygote, right after a full collection. Returns the bytes that are taken now."""
    taken = 0
    for size, count in _holes():
        _held.append([_of(size, i) for i in range(count)])
        taken += size * count
    return taken


def _of(size: int, number: int) -> object:
    """A new object of `size` bytes that refers to nothing."""
    if size == _BARE:
        return object()
    return _MOST + number if size == _NUMBER else bytes(size - sys.getsizeof(b""))


def _holes() -> Iterator[tuple[int, int]]:
    """For each size of objects: how many are free in memory that others use."""
    for line in _report().splitlines():
        words = line.split()
        if len(words) == _COLUMNS and all(word.isdigit() for word in words):
            yield int(words[1]), int(words[4])


def _report() -> str:
    """Returns what the interpreter's allocator says of itself, which it does on standard error alone."""
    tell = getattr(sys, "_debugmallocstats", None)
    if tell is None:
        return ""
    report, errors = os.memfd_create("holes", os.MFD_CLOEXEC), os.dup(2)
    try:
        flush_c_streams()
        os.dup2(report, 2)
        tell()
        flush_c_streams()
        return os.pread(report, _MOST, 0).decode()
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        os.close(report)
