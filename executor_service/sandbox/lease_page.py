"""Shared memory that the server writes and the inits of its boxes read: until when work under leases may run, and in
which boxes there is such work.

The limiter gives the tokens of an executor that it does not hear from to others, after a time that both know. A server
that hangs, or is stopped, does not kill what runs under its leases in that time; the inits, which go on, do.

Invariants: nobody but the server can write to it; a program never sees it.
"""

from __future__ import annotations

import math
import mmap
import os

from executor_service.guest.lease import COUNTS_AT

_SERVER_FIRST_S = 0.25
"""A server that lives kills by itself, and what has a lease alone: on a busy machine this takes some hundredths of a
second. A quarter of the limiter's own margin for the killing (`limiter.core.limits.SILENCE_MARGIN_S`)."""


class LeasePage:
    """`boxes` is the number of boxes there can be. Without a word of the limiter's, work may run for ever."""

    def __init__(self, boxes: int) -> None:
        handle = os.memfd_create("leases", os.MFD_CLOEXEC)
        try:
            os.ftruncate(handle, COUNTS_AT + 4 * boxes)
            self._memory = mmap.mmap(handle, COUNTS_AT + 4 * boxes)
            self.handle = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
            """For inits. What is mapped by it can never be made writable."""
        finally:
            os.close(handle)
        self._until = memoryview(self._memory)[:8].cast("d")
        self._held = memoryview(self._memory)[COUNTS_AT:].cast("I")
        self._until[0] = math.inf

    def allow_until(self, when: float) -> None:
        """Work under leases may run until then, by the monotonic clock of the machine, in seconds."""
        self._until[0] = when + _SERVER_FIRST_S

    def hold(self, box: int) -> None:
        """Something in the box with this number runs under a lease from now on; `drop` as often."""
        self._held[box] += 1

    def drop(self, box: int) -> None:
        """Something that ran under a lease is over."""
        self._held[box] -= 1

    def close(self) -> None:
        """Inits that live see the last that was written."""
        self._until.release()
        self._held.release()
        self._memory.close()
        os.close(self.handle)
