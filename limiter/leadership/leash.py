"""A time until which a process may lead, moved on by another process of its machine that watches over it.

It lies in memory that both share, so that a process that stood still reads it before it decides anything. Times are the
machine's monotonic clock.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Mapping

VARIABLE = "FAIRBOX_LEASH_FD"
"""Environment variable with the descriptor, for a program that is started with it."""
_TIME = struct.Struct("=d")


class Leash:
    """`Leash()` makes one, `Leash(descriptor)` opens one that was handed down."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            with tempfile.TemporaryFile() as file:
                file.truncate(_TIME.size)
                descriptor = os.dup(file.fileno())
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _TIME.size)

    @classmethod
    def handed_down(cls, environment: Mapping[str, str] = os.environ) -> Leash | None:
        """The one that whoever started this program holds; None: nobody does."""
        descriptor = environment.get(VARIABLE, "")
        return cls(int(descriptor)) if descriptor else None

    @property
    def until(self) -> float:
        """From then on the process may not lead."""
        return float(_TIME.unpack_from(self._memory)[0])

    @until.setter
    def until(self, until: float) -> None:
        _TIME.pack_into(self._memory, 0, until)
