"""Lays the objects of a zygote side by side, so that huge pages can hold them.

CPython asks the kernel for 1 MiB at a time, wherever that finds room between the libraries, and a huge page is 2 MiB.
Within the block what it asks for comes from the heap of C, which grows in one piece. Only where things lie changes:
what programs ask for afterwards comes from the kernel as ever.
"""

from __future__ import annotations

import contextlib
import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_POOL = 16 << 10
"""CPython divides an arena into pools of this size, and begins at the next multiple of it."""
_ABOVE = 3 << 20
"""Once so much was freed at a time, glibc takes up to as much from its heap, and not from the kernel."""


class _Allocator(ctypes.Structure):
    """PyObjectArenaAllocator."""

    _fields_ = (("context", ctypes.c_void_p), ("allocate", ctypes.c_void_p), ("free", ctypes.c_void_p))


@contextlib.contextmanager
def gathered() -> Iterator[None]:
    """Makes CPython take arenas from C's heap; changes nothing without glibc, or without CPython's allocator hooks."""
    libc, python = ctypes.CDLL(None), ctypes.pythonapi
    if not (hasattr(libc, "gnu_get_libc_version") and hasattr(python, "PyObject_SetArenaAllocator")):
        yield
        return
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)
    libc.free(libc.malloc(_ABOVE))
    usual = _Allocator()
    python.PyObject_GetArenaAllocator(ctypes.byref(usual))
    # allocate(context, size) is aligned_alloc(alignment, size). What is freed within the block is lost: a function that
    # looks at no argument stands for free(context, address, size). What is freed later is given back to the kernel.
    ours = _Allocator(_POOL, _address(libc.aligned_alloc), _address(libc.getpid))
    python.PyObject_SetArenaAllocator(ctypes.byref(ours))
    try:
        yield
    finally:
        python.PyObject_SetArenaAllocator(ctypes.byref(usual))


def _address(function: ctypes._NamedFuncPointer) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
