"""Copies for a worker, while it waits, the pages that its program will write to: or somebody waits for each copy.

A forked process shares its memory with its parent, and the kernel copies a page when either writes to it, at 2 us each.
Which pages every Python program writes to, the zygote finds out once, from children that play one. Only where a page
is copied changes, not what is in it: where the kernel can't do this at once, nothing is lost but time.
"""

from __future__ import annotations

import ctypes
import struct

from executor_service.guest.warm import page_probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PROCESS_MADVISE = 440
"""The same on every architecture."""
_MYSELF = -10000
"""PIDFD_SELF_THREAD."""
_MADV_POPULATE_WRITE = 23
_SPAN = struct.Struct("@PN")
"""struct iovec."""
_MOST_SPANS = 1024
"""UIO_MAXIOV. A program that prints has 120."""

_call = ctypes.CDLL(None)["syscall"]
_call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint)
_spans = ctypes.create_string_buffer(0)
_address = _count = 0


def learn(*programs: Callable[[], object]) -> int:
    """In the zygote: `programs` do what programs do, each in a child, and leave nothing in this process.

    Returns the number of pages that all of them write to; 0: this kernel does not tell, or can't copy them at once.
    """
    # Memory that a child has asked for is not there in a worker, where it would keep what follows from being copied.
    here = [each for each in page_probe.mappings() if _writable(each)]
    written = set.intersection(*map(_written, programs)) - _written(_nothing)
    pages = sorted(page for page in written if any(each.start <= page < each.end for each in here))
    spans: list[list[int]] = []
    for page in pages:
        if spans and page == sum(spans[-1]):
            spans[-1][1] += page_probe.PAGE
        else:
            spans.append([page, page_probe.PAGE])
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
    """Plays nothing: a child writes to some pages merely by being one that looks at itself."""


def _written(play: Callable[[], object]) -> set[int]:
    """Addresses of the private pages that a child writes to while it plays."""
    return page_probe.after(play, lambda: list(page_probe.pages(_writable, page_probe.PRESENT | page_probe.EXCLUSIVE)))


def _writable(mapping: page_probe.Mapping) -> bool:
    return mapping.rights == b"rw-p"
