"""Output on its way from a program to one reader: kept until the reader takes it. Pure.

Invariants: nothing is lost and nothing comes twice; within one stream the order is that of the program; a reader that
is slow or stands still holds nobody up, and what is kept for it never exceeds what is kept of the output itself,
because bytes beyond the output limit are not put in. Between the two streams the order is that in which they were read,
for a reader that keeps up; one that does not gets all of one stream before the other, as two pipes would give it.
"""

from __future__ import annotations

from executor_service.sandbox.report import Stream


class OutputLog:
    """The kept output of one run, from its beginning: readers that come late start there."""

    def __init__(self) -> None:
        self._data = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
        self._latest = Stream.STDOUT

    def append(self, stream: Stream, data: bytes) -> None:
        self._data[stream] += data
        self._latest = stream

    def read(self, stream: Stream, start: int, most: int) -> bytes:
        """Up to `most` bytes of a stream from `start`; empty when there are none yet."""
        return bytes(memoryview(self._data[stream])[start : start + most])

    @property
    def latest(self) -> Stream:
        """The stream that was written last."""
        return self._latest


class OutputReader:
    """One reader's place in a log. It holds no bytes."""

    def __init__(self, log: OutputLog) -> None:
        self._log = log
        self._places = dict.fromkeys(Stream, 0)

    def reads(self, log: OutputLog) -> bool:
        """Says whether it reads this log."""
        return self._log is log

    def take(self, most: int) -> tuple[Stream, bytes] | None:
        """The next bytes, of one stream; None when there are none yet."""
        # The stream that was not written last has what was written before.
        for stream in sorted(Stream, key=lambda stream: stream is self._log.latest):
            data = self._log.read(stream, self._places[stream], most)
            if data:
                self._places[stream] += len(data)
                return stream, data
        return None

    def taken(self, stream: Stream) -> int:
        """Bytes of a stream that were taken so far."""
        return self._places[stream]
