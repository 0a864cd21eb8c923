"""Journal of a process: a record of what happens to it that outlives a SIGKILL.

Invariants: a line of the journal is one write, so it is whole or missing; a step is in the file's shared memory as soon
as `take()` returns.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from pathlib import Path

SLOTS = 1 << 16
"""Runs of one executor process; a soak makes some ten thousand."""
_SLOT = struct.Struct("=q")


class Journal:
    """Appends events to a file of its own."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, *, at: int | None = None, **facts: str | int) -> None:
        """Writes one event down; `at` is now unless given."""
        event = {"kind": kind, "at": time.monotonic_ns() if at is None else at, **facts}
        os.write(self._file, json.dumps(event).encode() + b"\n")


class Steps:
    """Times of the last step of each run."""

    def __init__(self, path: Path) -> None:
        with path.open("wb+") as file:
            file.truncate(SLOTS * _SLOT.size)
            self._memory = mmap.mmap(file.fileno(), 0)

    def take(self, run: int, at: int) -> None:
        """Run number `run`, from 0, took a step at that time."""
        _SLOT.pack_into(self._memory, run * _SLOT.size, at)

    @staticmethod
    def read(path: Path) -> list[int]:
        """The last step of each run, 0 where there is none."""
        return [value for (value,) in _SLOT.iter_unpack(path.read_bytes())]
