"""Reads what a program writes: both streams, while it runs, into bounded captures.

Invariants: a program is never held up for long by a full pipe; what is kept is bounded, the rest counted; after
`drain()` everything that was written before is in.

`Capture` is pure. A program that floods is not held up, and not let go on for ever: `flooded` says when it is to be
killed.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import termios
from collections.abc import Callable
from io import BytesIO

from executor_service.model import Output
from executor_service.sandbox.report import Stream

FLOOD_FACTOR = 64
"""A stream may carry this many times the output limit before its program is killed."""
FLOOD_MINIMUM = 16 << 20
"""Bytes that a stream may always carry: a small limit shall cut a talkative program's output, not kill it."""


class Capture:
    """One stream of one program."""

    def __init__(self, limit: int, before: Output | None = None) -> None:
        """`before`: what was captured with another limit, to be gone on with."""
        self._limit = limit
        self._flood = max(limit * FLOOD_FACTOR, FLOOD_MINIMUM)
        self._data = BytesIO()  # what it has is given away without a copy
        self._kept = self._data.write(before.data[:limit] if before else b"")
        self._total = before.total_bytes if before else 0
        self._cut = before is not None and before.truncated

    def feed(self, data: bytes) -> bytes:
        """Takes in what was read, and returns what is kept of it."""
        self._total += len(data)
        kept = data[: max(0, self._limit - self._kept)] if not self._cut else b""
        self._kept += self._data.write(kept)
        return kept

    @property
    def flooded(self) -> bool:
        return self._total > self._flood

    def output(self) -> Output:
        return Output(self._data.getvalue(), self._total, truncated=self._total > self._kept)


_CHUNK = 64 << 10
"""Bytes read at once: what a pipe holds."""


def _nobody() -> None:
    """Nobody is told any more."""


def _empty(limit: int) -> dict[Stream, Capture]:
    return {Stream.STDOUT: Capture(limit), Stream.STDERR: Capture(limit)}


class Streams:
    """`out` and `err` are read ends of pipes, which it owns. `on_flood` is called for each piece beyond the flood.

    It reads by itself from `listen()` on: what ends sooner is read by `drain()` alone, which costs less.
    """

    def __init__(self, out: int, err: int, limit: int, on_flood: Callable[[], None]) -> None:
        self._limit = limit
        self.on_flood = on_flood
        self._pipes = {out: Stream.STDOUT, err: Stream.STDERR}
        self._captures = _empty(limit)
        self._totals = dict.fromkeys(self._pipes, 0)
        self.observe: Callable[[Stream, bytes], None] | None = None
        """Is given what is kept, as it is read."""
        self.tap: Callable[[bytes], None] | None = None
        """Is given all of standard output, as it is read."""
        for pipe in self._pipes:
            os.set_blocking(pipe, False)
        self._reading: set[int] = set()
        self._lingers = False

    def listen(self) -> None:
        """Reads as it comes, until `rest()`."""
        loop = asyncio.get_running_loop()
        for pipe in self._pipes:
            self._reading.add(pipe)
            loop.add_reader(pipe, self._read, pipe)

    def pause(self, paused: bool) -> None:
        """Reads no standard output by itself, so that its writer is held up; or reads it again."""
        for pipe, stream in self._pipes.items():
            if stream is Stream.STDOUT and paused:
                self._forget(pipe)
            elif stream is Stream.STDOUT and pipe not in self._reading:
                self._reading.add(pipe)
                asyncio.get_running_loop().add_reader(pipe, self._read, pipe)

    def rest(self) -> None:
        """Reads no more by itself: whoever wrote is about to be killed."""
        for pipe in tuple(self._reading):
            self._forget(pipe)

    def drain(self) -> None:
        """Reads what is in the pipes now, and not what somebody who lives still writes."""
        for pipe in self._pipes:
            end = self._totals[pipe] + _waiting(pipe)
            while self._totals[pipe] < end and self._read(pipe):
                pass

    def outputs(self) -> tuple[Output, Output]:
        """Standard output and standard error so far."""
        return self._captures[Stream.STDOUT].output(), self._captures[Stream.STDERR].output()

    def take(self) -> tuple[Output, Output]:
        """Returns what was written since the last call."""
        self.drain()
        taken = self.outputs()
        self._captures = _empty(self._limit)
        return taken

    def limit(self, limit: int, observe: Callable[[Stream, bytes], None] | None) -> None:
        """Other bounds and another observer for what comes, and for what has come since the last `take()`."""
        self.observe, before = observe, self._limit
        if limit != before:
            self._limit = limit
            self._captures = {stream: Capture(limit, each.output()) for stream, each in self._captures.items()}
        if observe is not None:
            for stream, capture in self._captures.items():
                if kept := capture.output().data:
                    observe(stream, kept)

    def linger(self) -> None:
        """Reads on and keeps nothing: who has been left running with these pipes goes on writing. They are closed when
        nobody has them any more, or one of them is flooded. To be called while it reads by itself."""
        self.limit(0, None)
        self.take()
        self.on_flood, self._lingers = self.close, True
        if not self._reading:
            self.close()

    @property
    def closed(self) -> bool:
        return not self._pipes

    def close(self) -> None:
        """Idempotent. It lets go of whoever is told, who has it: what a run was sent would stay as long as both."""
        self.rest()
        self.on_flood, self.observe, self.tap = _nobody, None, None
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes = {}

    def _forget(self, pipe: int) -> None:
        if pipe in self._reading:
            self._reading.remove(pipe)
            asyncio.get_running_loop().remove_reader(pipe)

    def _read(self, pipe: int) -> bool:
        """Reads once. False when there is nothing more now, or ever."""
        try:
            data = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._forget(pipe)
            if self._lingers and not self._reading:
                self.close()
            return False
        self._totals[pipe] += len(data)
        stream = self._pipes[pipe]
        capture = self._captures[stream]
        kept = capture.feed(data)
        if stream is Stream.STDOUT and self.tap is not None:
            self.tap(data)
        if kept and self.observe is not None:
            self.observe(stream, kept)
        if capture.flooded:
            self.on_flood()
        return True


def _waiting(pipe: int) -> int:
    """Bytes that a pipe holds now."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]
