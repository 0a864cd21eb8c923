"""Locks that are files: they end with the process that holds them, however it ends.

Invariants: who holds a lock exclusively holds it alone, in this process and all others; a lock whose file was removed
by who held it last is nobody's.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

_LOOK_S = 0.05
"""Between two looks at a lock that another process holds."""


class FileLocks:
    """Locks by name in a folder. Whoever says nothing else waits for at most `wait_s`."""

    def __init__(self, folder: Path, wait_s: float) -> None:
        self._folder = folder
        self._wait_s = wait_s

    def lock(
        self, name: str, *, shared: bool = False, wait_s: float | None = None, last: bool = False
    ) -> AbstractContextManager[None]:
        """As `held`."""
        return held(self._folder / name, shared=shared, wait_s=self._wait_s if wait_s is None else wait_s, last=last)


@contextmanager
def held(path: Path, *, shared: bool = False, wait_s: float = 0.0, last: bool = False) -> Iterator[None]:
    """Holds the lock `path` for a block. `last`: its file goes with it. TimeoutError after `wait_s`."""
    until = time.monotonic() + wait_s
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise TimeoutError(f"{path} was held longer than {max(wait_s, 0.0):g} s") from None
                time.sleep(_LOOK_S)
                continue
            if not _is(path, handle):
                continue  # it was removed by who had it last
            try:
                yield
            finally:
                if last:
                    path.unlink()
            return
        finally:
            os.close(handle)


def _is(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
