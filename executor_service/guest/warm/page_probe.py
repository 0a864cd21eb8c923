"""Finds out what a program does to the memory of a zygote, by a child that plays one.

Nothing of it stays in this process. If there is no /proc, or it does not tell, no page is found.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = os.sysconf("SC_PAGE_SIZE")
PRESENT, EXCLUSIVE = 1 << 63, 1 << 56
"""In /proc/PID/pagemap: the page is there; nobody else maps it."""
_ENTRY = struct.Struct("=Q")


class Mapping:
    """One line of /proc/PID/maps."""

    __slots__ = ("end", "file", "name", "rights", "start")

    def __init__(self, line: bytes) -> None:
        where, self.rights, _, _, _, *name = line.split(maxsplit=5)
        self.start, self.end = (int(word, 16) for word in where.split(b"-"))
        self.name = name[0] if name else b""
        self.file = self.name if self.name.startswith(b"/") else b""
        """Empty: memory that is no file's."""


def mappings() -> list[Mapping]:
    """Mappings of this process, by address; none if there is no /proc."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return [Mapping(line) for line in maps.read().splitlines()]
    except OSError:
        return []


def pages(which: Callable[[Mapping], bool], bits: int) -> Iterator[int]:
    """Addresses of the pages of this process in mappings of that kind whose entries have all of `bits`."""
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for each in mappings():
            if which(each):
                pagemap.seek(each.start // PAGE * _ENTRY.size)
                entries = _ENTRY.iter_unpack(pagemap.read((each.end - each.start) // PAGE * _ENTRY.size))
                yield from (each.start + i * PAGE for i, (entry,) in enumerate(entries) if entry & bits == bits)


def after(play: Callable[[], object], look: Callable[[], list[int]]) -> set[int]:
    """Returns what `look` finds in a child that has played."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            play()
            with open(writer, "wb") as told:
                told.writelines(map(_ENTRY.pack, _found(look)))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as heard:
        found = {page for (page,) in _ENTRY.iter_unpack(heard.read())}
    os.waitpid(child, 0)
    return found


def _found(look: Callable[[], list[int]]) -> list[int]:
    try:
        return look()
    except OSError:
        return []
