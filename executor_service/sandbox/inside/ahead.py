"""Copies for a worker, while it waits, the pages that its program will write to: or somebody waits for each copy.

A forked process shares its memory with its parent, and the kernel copies a page when either writes to it, at 2 us each.
Which pages every Python program writes to, the template finds out once, from children that play one. Only where a page
is copied changes, not what is in it: where the kernel can't do this at once, nothing is lost but time.
"""

from __future__ import annotations

import ctypes
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PROCESS_MADVISE = 440
"""The same on every architecture."""
_MYSELF = -10000
"""PIDFD_SELF_THREAD."""
_MADV_POPULATE_WRITE = 23
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = struct.Struct("=Q")
_PRESENT, _EXCLUSIVE = 1 << 63, 1 << 56
"""In /proc/PID/pagemap: the page is there; nobody else maps it, so it was copied."""
_SPAN = struct.Struct("@PN")
"""struct iovec."""
_MOST_SPANS = 1024
"""UIO_MAXIOV. A program that prints has 120."""

_call = ctypes.CDLL(None)["syscall"]
_call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint)
_spans = ctypes.create_string_buffer(0)
_address = _count = 0


def learn(*plays: Callable[[], object]) -> int:
    """In the template: `plays` do what programs do, each in a child, and leave nothing in this process.

    Returns the number of pages that all of them write to; 0: this kernel does not tell, or can't copy them at once.
    """
    pages = sorted(set.intersection(*map(_written, plays)) - _written(_nothing))
    spans: list[list[int]] = []
    for page in pages:
        if spans and page == sum(spans[-1]):
            spans[-1][1] += _PAGE
        else:
            spans.append([page, _PAGE])
    _keep(spans[:_MOST_SPANS])
    if spans and copy() < 0:
        _keep([])
    return len(pages) if _count else 0


def copy() -> int:
    """In a worker, before the filter of system calls. Returns the bytes that are its own now, below 0 for none."""
    done: int = _call(_PROCESS_MADVISE, _MYSELF, _address, _count, _MADV_POPULATE_WRITE, 0)
    return done


def _keep(spans: list[list[int]]) -> None:
    global _spans, _address, _count
    packed = b"".join(_SPAN.pack(*span) for span in spans)
    _spans = ctypes.create_string_buffer(packed, len(packed))
    _address, _count = ctypes.addressof(_spans), len(spans)


def _nothing() -> None:
    """What a child writes to by being one that looks at itself."""


def _written(play: Callable[[], object]) -> set[int]:
    """Addresses of the private pages that a child writes to while it plays."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            play()
            with open(writer, "wb") as told:
                told.writelines(map(_ENTRY.pack, _copied()))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as heard:
        found = {page for (page,) in _ENTRY.iter_unpack(heard.read())}
    os.waitpid(child, 0)
    return found


def _copied() -> list[int]:
    found: list[int] = []
    try:
        with open("/proc/self/maps", "rb") as maps, open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            for line in maps.read().splitlines():
                where, rights = line.split()[:2]
                if rights != b"rw-p":
                    continue
                start, end = (int(word, 16) for word in where.split(b"-"))
                pagemap.seek(start // _PAGE * _ENTRY.size)
                entries = _ENTRY.iter_unpack(pagemap.read((end - start) // _PAGE * _ENTRY.size))
                copied = (i for i, (entry,) in enumerate(entries) if entry & _PRESENT and entry & _EXCLUSIVE)
                found += [start + i * _PAGE for i in copied]
    except OSError:
        return []  # there is no /proc, or it does not tell
    return found
