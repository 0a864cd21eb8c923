"""Lays the machine code that programs run in huge pages, which a fork has mapped from its first moment.

What is mapped from a file is not in the page tables of a fork: each 64 KiB that a program runs are a page fault of its
own, and sixteen entries to be taken away in the end. Of a huge page a fork copies one entry, for 2 MiB. Addresses and
bytes stay what they are.

Nothing is different where the kernel has no huge page or lets nobody run what was written, and on processors other than
x86-64, which may have to be told of code that was written. Else /proc/PID/maps shows memory where it showed the file,
and what lay between its code can be run as well.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import Counter

from executor_service.guest.walls.syscalls import HUGE, collapse
from executor_service.guest.warm import page_probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_WORTH = 64
"""Pages of a huge one that a program has to need: four page faults, as the kernel maps sixteen at a time."""
_PROCESSOR = "x86_64"
_RUN = mmap.PROT_READ | mmap.PROT_EXEC
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None)
_mmap, _mremap = _libc["mmap"], _libc["mremap"]
_mmap.restype = _mremap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_munmap, _mprotect, _madvise = _libc["munmap"], _libc["mprotect"], _libc["madvise"]
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_mprotect.argtypes = _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def enlarge(*programs: Callable[[], object]) -> int:
    """In the zygote, which has one thread: `programs` do what programs do, each in a child.

    Returns how many huge pages hold what they run now; 0 where there are none to be had.
    """
    blocks: set[int] = set()
    for program in programs if os.uname().machine == _PROCESSOR else ():
        needed = Counter(page & -HUGE for page in page_probe.after(program, _mapped))
        blocks.update(block for block, count in needed.items() if count >= _WORTH)
    return sum(_move(block) for block in sorted(blocks & _movable())) if blocks else 0


def _mapped() -> list[int]:
    return list(page_probe.pages(_read_only, page_probe.PRESENT))


def _read_only(mapping: page_probe.Mapping) -> bool:
    return bool(mapping.file) and mapping.rights in (b"r-xp", b"r--p")


def _movable() -> set[int]:
    """Blocks of the size of a huge page that are one file's alone, have code in them and can't be written to."""
    whole: set[int] = set()
    before: page_probe.Mapping | None = None
    start, runs = 0, set[int]()
    for each in filter(_read_only, page_probe.mappings()):
        if before is None or (before.end, before.file) != (each.start, each.file):
            start, runs = each.start, set()
        first = each.start & -HUGE
        if each.rights == b"r-xp":
            runs.update(range(first, each.end, HUGE))
        whole.update(block for block in range(-(-start // HUGE) * HUGE, each.end - HUGE + 1, HUGE) if block in runs)
        before = each
    return whole


def _move(block: int) -> bool:
    """Moves the block, and says whether it lies in a huge page now."""
    room = _mmap(None, 2 * HUGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if room == _FAILED:
        return False
    copy = -(-room // HUGE) * HUGE
    _madvise(copy, HUGE, mmap.MADV_HUGEPAGE)
    ctypes.memmove(copy, block, HUGE)
    moved = False
    if collapse(copy, copy + HUGE) and _mprotect(copy, HUGE, _RUN) == 0:
        # At once for whoever runs the code, which is this process: it comes back to the same bytes.
        moved = _mremap(copy, HUGE, HUGE, _MREMAP_MAYMOVE | _MREMAP_FIXED, block) == block
    for start, end in ((room, copy), (copy + HUGE, room + 2 * HUGE)) if moved else ((room, room + 2 * HUGE),):
        if end > start:
            _munmap(start, end - start)
    return moved
