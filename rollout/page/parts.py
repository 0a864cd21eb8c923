"""Compressed chunks in files of a few megabytes, which a page holds inside or loads from a folder beside it.

A part is a program of one call, `fairboxPart(N,"...")`, whose text is chunks in base64, each gzip for itself, so that a
browser unpacks one without the others. Short bodies share a chunk. Invariants: bodies of a lane lie in the order in
which they were added; at most `MAX_PENDING` chunks are held in memory; what is written so far lies in a folder of its
own until somebody moves it.
"""

from __future__ import annotations

import base64
import gzip
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

PART_BYTES = 8 << 20
"""A part is closed when it has this size: a browser loads and keeps whole parts."""
CHUNK_BYTES = 64 << 10
"""A chunk is closed when its bodies have this size: small ones would cost more than they hold."""
MAX_PENDING = 64
"""Chunks that wait for their compression, or for those before them."""
_LEVEL = 1
"""Twice as fast as 6, and a tenth larger with token ids and logprobs."""
_THREADS = 2
"""zlib runs beside the reader, which holds the interpreter; more threads would wait for it."""
_END = b'")\n'


@dataclass(slots=True)
class Chunk:
    """Position of a chunk; zeros until it is written."""

    part: int = 0
    offset: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class BodyPlace:
    """Position of a body: its chunk, and bytes of that."""

    chunk: Chunk
    start: int
    size: int

    def fact(self) -> list[int]:
        """Part, first character and number of characters of the chunk, first byte and number of bytes in it."""
        return [self.chunk.part, self.chunk.offset, self.chunk.length, self.start, self.size]


class _Lane:
    """Bodies of one kind that will be a chunk."""

    def __init__(self) -> None:
        self.chunk = Chunk()
        self.held: list[bytes] = []
        self.size = 0


def pack(data: bytes) -> bytes:
    """A chunk's text."""
    return base64.b64encode(gzip.compress(data, _LEVEL, mtime=0))


class PartWriter:
    """`with PartWriter(folder) as parts: place = parts.add("texts", data)`; places are known after `drain()`."""

    def __init__(self, folder: Path) -> None:
        self.paths: list[Path] = []
        self.size = 0
        """Bytes of all chunks."""
        self._folder = folder
        self._file: BinaryIO | None = None
        self._written = 0
        self._pending: deque[tuple[Future[bytes], Chunk]] = deque()
        self._lanes: defaultdict[str, _Lane] = defaultdict(_Lane)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pack")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        self.close()

    def add(self, lane: str, data: bytes) -> BodyPlace:
        """Adds a body to the chunk of its lane, which is compressed beside the caller."""
        open = self._lanes[lane]
        place = BodyPlace(open.chunk, open.size, len(data))
        open.held.append(data)
        open.size += len(data)
        if open.size >= CHUNK_BYTES:
            self._submit(lane)
        return place

    def drain(self) -> None:
        """Waits until all chunks are written. Raises OSError if they can't be."""
        for lane in list(self._lanes):
            self._submit(lane)
        while self._pending:
            self._write()

    def close(self) -> None:
        """Ends the last part."""
        file, self._file = self._file, None
        if file is not None:
            file.write(_END)
            file.close()

    def texts(self) -> Iterator[str]:
        """The text of each part, without the call around it, after `close()`."""
        for number, path in enumerate(self.paths):
            yield path.read_text(encoding="ascii")[len(_begin(number)) : -len(_END)]

    def _submit(self, lane: str) -> None:
        if len(self._pending) >= MAX_PENDING:
            self._write()
        ended = self._lanes.pop(lane)
        self._pending.append((self._threads.submit(pack, b"".join(ended.held)), ended.chunk))

    def _write(self) -> None:
        packed, chunk = self._pending.popleft()
        text = packed.result()
        if self._file is None or self._written >= PART_BYTES:
            self.close()
            number = len(self.paths)
            self.paths.append(self._folder / f"{number}.js")
            self._file, self._written = self.paths[-1].open("wb"), 0
            self._file.write(_begin(number))
        chunk.part, chunk.offset, chunk.length = len(self.paths) - 1, self._written, len(text)
        self._file.write(text)
        self._written += len(text)
        self.size += len(text)


def _begin(number: int) -> bytes:
    return f'fairboxPart({number},"'.encode()
