"""Traces of a use in the kernel though all its processes are dead: used numbers of objects, and counts of packets.

Whoever wants to know that nothing of the kind has happened looks before and after. Neither look leaves more than it
finds, but for the numbers that it takes itself.
"""

from __future__ import annotations

import os

from executor_service.guest.walls import syscalls as sys_

_PLACE, _LAST = 0x7FFF, 63
"""Bits of a System V object's number that are its place, and the last place that few objects get before the first one
comes again, with the next number above these bits. Of kernels that count in another way all are taken for used."""
LONG_S = 0.5
"""There are four million numbers, and one takes longer than a microsecond: after so long they may have come again."""
_MOST_COUNTERS = 8192


def next_inode(folder: str, at: int | None = None) -> int:
    """Takes a number of the file system of a folder, which counts them. `at`: a descriptor that its path begins at."""
    handle = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, dir_fd=at)
    number = os.fstat(handle).st_ino
    os.close(handle)
    return number


class ObjectNumbers:
    """Numbers of System V objects in the IPC namespace of this process."""

    def __init__(self) -> None:
        self._newest = sys_.ipc_numbers()

    def used(self) -> bool:
        """Says whether an object was made since the last look, which may be gone again."""
        expected = list(map(_next, self._newest))
        try:
            self._newest = sys_.ipc_numbers()
        except OSError:
            self._newest = []  # there is no room left
        return self._newest != expected


def _next(number: int) -> int:
    return number + 1 if number & _PLACE < _LAST else (number | _PLACE) + 1


class PacketCounts:
    """Counts of the network namespace of process `owner`; no packet comes or fails without a trace in them."""

    def __init__(self, owner: str) -> None:
        paths = (f"/proc/{owner}/net/snmp", f"/proc/{owner}/net/snmp6")
        self.handles = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths if os.path.exists(path)]

    def look(self) -> list[bytes]:
        """Two looks are equal when nothing has happened."""
        return [os.pread(handle, _MOST_COUNTERS, 0) for handle in self.handles]

    def close(self) -> None:
        for handle in self.handles:
            os.close(handle)
