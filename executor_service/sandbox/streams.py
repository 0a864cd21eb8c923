"""Reads what a program writes: both streams, while it runs, into bounded captures.

Invariants: a program is never held up for long by a full pipe; what is kept is bounded, the rest counted; after
`drain()` everything that was written before is in.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from executor_service.model import Output
from executor_service.sandbox.output import Capture
from executor_service.sandbox.report import Stream

__all__ = ["Streams"]

_CHUNK = 64 << 10
"""Bytes read at once: what a pipe holds."""


class Streams:
    """`out` and `err` are read ends of pipes, which it owns. `on_flood` is called for each piece beyond the flood."""

    def __init__(self, out: int, err: int, limit: int, on_flood: Callable[[], None]) -> None:
        self._limit = limit
        self._on_flood = on_flood
        self._pipes = {out: Stream.STDOUT, err: Stream.STDERR}
        self._captures = {stream: Capture(limit) for stream in Stream}
        self.observe: Callable[[Stream, bytes], None] | None = None
        """Is given what is kept, as it is read."""
        loop = asyncio.get_running_loop()
        for pipe in self._pipes:
            os.set_blocking(pipe, False)
            loop.add_reader(pipe, self._read, pipe)

    def drain(self) -> None:
        """Reads what is in the pipes now."""
        for pipe in self._pipes:
            while self._read(pipe):
                pass

    def outputs(self) -> tuple[Output, Output]:
        """Standard output and standard error so far."""
        return self._captures[Stream.STDOUT].output(), self._captures[Stream.STDERR].output()

    def take(self, limit: int | None = None) -> tuple[Output, Output]:
        """What was written since the last time, and starts anew with `limit` bytes for each."""
        self.drain()
        taken = self.outputs()
        self._limit = limit or self._limit
        self._captures = {stream: Capture(self._limit) for stream in Stream}
        return taken

    def close(self) -> None:
        """Idempotent."""
        loop = asyncio.get_running_loop()
        for pipe in self._pipes:
            loop.remove_reader(pipe)
            os.close(pipe)
        self._pipes = {}

    def _read(self, pipe: int) -> bool:
        """Reads once. False when there is nothing more now, or ever."""
        try:
            data = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            asyncio.get_running_loop().remove_reader(pipe)
            return False
        stream = self._pipes[pipe]
        capture = self._captures[stream]
        kept = capture.feed(data)
        if kept and self.observe is not None:
            self.observe(stream, kept)
        if capture.flooded:
            self._on_flood()
        return True
