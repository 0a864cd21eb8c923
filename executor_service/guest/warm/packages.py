"""Loads the packages of a profile and uses them once, so that programs find them ready.

Invariants: one thread is left; nothing is written outside `folder`, which is removed afterwards; a package that is not
installed is named and left out.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.warm import page_probe
from executor_service.guest.warm.exercises import BASE, EXERCISES

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""One thread each: a process with threads can't be forked safely, and a run's limits are for one processor's worth."""
_NO_BACKGROUND = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""pyarrow, which pandas loads, has an allocator with a thread of its own."""
_LARGE = 32 << 20
"""Private memory from which on a profile gets huge pages; below, there is nothing to gain."""


def warm(packages: list[str], folder: str, *, lean: bool) -> list[str]:
    """Loads and exercises `packages`, and common modules unless `lean`; returns those that are not installed."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(THREADS, "1"), TMPDIR=folder, MPLCONFIGDIR=folder, **_NO_BACKGROUND)
    missing = []
    try:
        for package in packages:
            try:
                importlib.import_module(package)
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] != package.partition(".")[0]:
                    raise
                missing.append(package)
        if not lean:
            exec(BASE, {"__name__": "__main__"})  # noqa: S102 - our own text
        for package in packages:
            if package in EXERCISES and package not in missing:
                exec(EXERCISES[package], {"__name__": "__main__"})  # noqa: S102 - our own text
    finally:
        os.environ.clear()
        os.environ.update(before)
        if "tempfile" in sys.modules:
            vars(sys.modules["tempfile"])["tempdir"] = None
    for name in ("matplotlib",):
        module = sys.modules.get(name)
        for function in ("get_configdir", "get_cachedir"):
            clear = getattr(getattr(module, function, None), "cache_clear", None)
            if clear is not None:
                clear()
    gc.collect()
    sys_.trim_heap()
    _collapse()
    return missing


def _collapse() -> None:
    """Huge pages for private memory: forking copies one entry for each instead of 512."""
    spans = [
        (each.start, each.end)
        for each in page_probe.mappings()
        if b"w" in each.rights and each.name in (b"", b"[heap]")
    ]
    if sum(end - start for start, end in spans) >= _LARGE:
        for start, end in spans:
            sys_.collapse(start, end)
