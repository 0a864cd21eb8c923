"""Where the rows of a dump are: byte offsets and facts, built as the file is read and as it grows.

`RowIndex` is pure: bytes in, rows out. `StepFile` reads a file into one, a slice at a time, from any thread, and reads
single rows by their offset. Invariants: a line is a row as soon as it has its end; a last line without one is a row if
it is a whole object already, and is waited for otherwise; a broken line is a row that says what is wrong with it; a
file that was replaced or shortened is read anew, as another generation. What is held in memory is the facts, and one
line.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.viewer.facts import RowFacts, broken_row, facts_of, parse_line

__all__ = ["MAX_LINE_BYTES", "SLICE_BYTES", "IndexState", "RowIndex", "StepFile"]

MAX_LINE_BYTES = 64 << 20
"""A longer line is broken: 32k tokens with their texts take about one MiB."""
SLICE_BYTES = 1 << 20
"""Read at once: some 10 ms of work."""
CACHED_BYTES = 8 << 20
"""Of the lines whose rows are kept parsed, which takes about four times as much. The newest one is always kept."""


class RowIndex:
    """`feed()` it the bytes of a dump in order; `settle()` when there are no more for now."""

    def __init__(self, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.rows: list[RowFacts] = []
        self._max_line_bytes = max_line_bytes
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._skipped = 0
        """Bytes of a line that is too long, which are not kept."""
        self._line_offset = 0
        self._line = 1
        self._provisional = False
        """Whether the last row is of a line that has no end yet."""

    @property
    def position(self) -> int:
        """Bytes that were fed."""
        return self._line_offset + self._pending_bytes + self._skipped

    @property
    def waits_for(self) -> int:
        """Bytes of a last line that is not whole yet; 0 when there is none."""
        return 0 if self._provisional else self._pending_bytes + self._skipped

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        if not data:
            return
        if self._provisional:
            self.rows.pop()
            self._provisional = False
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._hold(data[start:end])
            self._finish_line()
            start = end + 1
        self._hold(data[start:])

    def settle(self) -> None:
        """Makes a row of a last line that has no end, if it is a whole object."""
        if self._provisional or self._skipped or not self._pending:
            return
        line = b"".join(self._pending)
        self._pending = [line]
        if line.rstrip().endswith(b"}") and isinstance(parse_line(line), dict):
            self.rows.append(self._row(line))
            self._provisional = True

    def _hold(self, part: bytes) -> None:
        if self._skipped or self._pending_bytes + len(part) > self._max_line_bytes:
            self._skipped += self._pending_bytes + len(part)
            self._pending, self._pending_bytes = [], 0
        elif part:
            self._pending.append(part)
            self._pending_bytes += len(part)

    def _finish_line(self) -> None:
        size = self._pending_bytes + self._skipped
        line = b"".join(self._pending)
        if self._skipped:
            problem = f"has {size} bytes, more than {self._max_line_bytes}"
            self.rows.append(broken_row(self._line, self._line_offset, size, problem))
        elif line.strip():
            self.rows.append(self._row(line))
        self._line_offset += size + 1
        self._line += 1
        self._pending, self._pending_bytes, self._skipped = [], 0, 0

    def _row(self, line: bytes) -> RowFacts:
        record = parse_line(line)
        if isinstance(record, str):
            return broken_row(self._line, self._line_offset, len(line), record)
        return facts_of(record, line=self._line, offset=self._line_offset, size=len(line))


@dataclass(frozen=True, slots=True)
class IndexState:
    """How far a file has been read."""

    generation: int
    """Grows when the file was replaced: rows of another generation are void."""
    rows: int
    position: int
    size: int
    """Bytes of the file when it was last looked at."""
    waits_for: int
    """Bytes of a last line that is not whole."""
    problem: str = ""
    """Why the file could not be read; empty when it could."""

    @property
    def complete(self) -> bool:
        """Whether everything that was there has been read."""
        return self.position >= self.size


class StepFile:
    """A dump on disk. Every method may be called from any thread, and takes no longer than a slice or a row does."""

    def __init__(self, path: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.path = path
        self._max_line_bytes = max_line_bytes
        self._lock = threading.Lock()
        self._index = RowIndex(max_line_bytes=max_line_bytes)
        self._identity: tuple[int, int] | None = None
        self._cache: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._cached_sizes: dict[int, int] = {}
        self._state = IndexState(0, 0, 0, 0, 0)

    @property
    def state(self) -> IndexState:
        """As of the last `advance()`."""
        return self._state

    @property
    def cached_rows(self) -> int:
        """Rows that are kept parsed."""
        return len(self._cache)

    def rows(self, start: int = 0) -> list[RowFacts]:
        """A copy of the rows from `start` on."""
        with self._lock:
            return self._index.rows[start:]

    def advance(self, max_bytes: int = SLICE_BYTES) -> IndexState:
        """Reads up to `max_bytes` more. A file that can't be read is a state that says so."""
        with self._lock:
            try:
                self._state = self._read_on(max_bytes)
            except OSError as error:
                state = self._state
                self._state = IndexState(
                    state.generation, state.rows, state.position, state.position, 0, error.strerror or str(error)
                )
            return self._state

    def read(self, row: RowFacts) -> dict[str, Any] | str:
        """The whole row, or why it can't be had."""
        if row.problem:
            return row.problem
        with self._lock:
            if row.offset in self._cache:
                self._cache.move_to_end(row.offset)
                return self._cache[row.offset]
        data = self.read_bytes(row)
        record = data if isinstance(data, str) else parse_line(data)
        if isinstance(record, dict):
            with self._lock:
                self._keep(row, record)
        return record

    def read_bytes(self, row: RowFacts, limit: int | None = None) -> bytes | str:
        """The line as it stands in the file, its first `limit` bytes, or why it can't be had."""
        size = row.size if limit is None else min(row.size, limit)
        try:
            with self.path.open("rb") as file:
                file.seek(row.offset)
                data = file.read(size)
        except OSError as error:
            return error.strerror or str(error)
        return data if len(data) == size else "the file was shortened"

    def _read_on(self, max_bytes: int) -> IndexState:
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            generation = self._state.generation
            if self._identity not in (None, identity) or status.st_size < self._index.position:
                self._index = RowIndex(max_line_bytes=self._max_line_bytes)
                self._cache.clear()
                self._cached_sizes.clear()
                generation += 1
            self._identity = identity
            file.seek(self._index.position)
            data = file.read(max_bytes)
        self._index.feed(data)
        if self._index.position >= status.st_size:
            self._index.settle()
        size = max(status.st_size, self._index.position)
        return IndexState(generation, len(self._index.rows), self._index.position, size, self._index.waits_for)

    def _keep(self, row: RowFacts, record: dict[str, Any]) -> None:
        self._cache[row.offset] = record
        self._cached_sizes[row.offset] = row.size
        while len(self._cache) > 1 and sum(self._cached_sizes.values()) > CACHED_BYTES:
            offset, _ = self._cache.popitem(last=False)
            del self._cached_sizes[offset]
