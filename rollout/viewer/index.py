"""The steps of a dump, and byte offsets and facts of their rows, built as a file is read and as it grows.

`StepFile` reads a file a slice at a time, from any thread, and single rows by their offset. Invariants: a line is a row
as soon as it has its end; a last line without one is a row if it is a whole object already, and is waited for
otherwise; a broken line is a row that says what is wrong with it; a file that was replaced or shortened is read anew,
as another generation. What is held in memory is the facts, and one line. Steps are ordered by number, whatever their
names' lengths, and files without a number follow by name; at most `MAX_OPEN` indexes are held, the least recently used
ones are dropped and are built anew when they are needed.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from fairbox.errors import ConfigError
from rollout.viewer.facts import RowFacts, broken_row, facts_of, parse_line

__all__ = ["DumpFolder", "IndexState", "Line", "Step", "StepFile", "read_lines"]

MAX_LINE_BYTES = 64 << 20
"""A longer line is broken: 32k tokens with their texts take about one MiB."""
SLICE_BYTES = 1 << 20
"""Read at once: some 10 ms of work."""
MAX_OPEN = 8
"""Indexes that are held; one of 100,000 rows takes about 100 MB."""
SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file."""

    number: int
    offset: int
    size: int
    """Bytes, without its end."""
    data: bytes | None
    """Without its end; None where it is too long."""
    ended: bool


def read_lines(file: BinaryIO, number: int = 1, offset: int = 0, limit: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """The lines from `offset` on. Of one that is longer than `limit` no more is held at a time."""
    file.seek(offset)
    while data := file.readline(limit + 1):
        size, part = len(data), data
        while not part.endswith(b"\n") and (part := file.readline(limit + 1)):
            size += len(part)
        ended = part.endswith(b"\n")
        line = data.removesuffix(b"\n") if size == len(data) and size - ended <= limit else None
        yield Line(number, offset, size - ended, line, ended)
        number, offset = number + 1, offset + size


@dataclass(frozen=True, slots=True)
class IndexState:
    """How far a file has been read."""

    generation: int = 0
    """Grows when the file was replaced: rows of another generation are void."""
    rows: int = 0
    position: int = 0
    size: int = 0
    """Bytes of the file when it was last looked at."""
    waits_for: int = 0
    """Bytes of a last line that is not whole."""
    problem: str = ""
    """Why the file could not be read; empty when it could."""

    @property
    def complete(self) -> bool:
        """Whether everything that was there has been read."""
        return self.position + self.waits_for >= self.size


class StepFile:
    """A dump on disk. Every method may be called from any thread, and takes no longer than a slice or a row does."""

    def __init__(self, path: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.path = path
        self._max_line_bytes = max_line_bytes
        self._lock = threading.Lock()
        self._rows: list[RowFacts] = []
        self._line = 1
        self._identity: tuple[int, int] | None = None
        self._state = IndexState()

    @property
    def state(self) -> IndexState:
        """As of the last `advance()`."""
        return self._state

    def rows(self, start: int = 0) -> list[RowFacts]:
        """A copy of the rows from `start` on."""
        with self._lock:
            return self._rows[start:]

    def advance(self, max_bytes: int = SLICE_BYTES) -> IndexState:
        """Reads up to `max_bytes` more, or a line. A file that can't be read is a state that says so."""
        with self._lock:
            try:
                self._read_on(max_bytes)
            except OSError as error:
                problem = error.strerror or str(error)
                self._state = replace(self._state, size=self._state.position, waits_for=0, problem=problem)
            return self._state

    def read(self, row: RowFacts) -> dict[str, Any] | str:
        """The whole row, or why it can't be had."""
        data = row.problem or self.read_bytes(row)
        return data if isinstance(data, str) else parse_line(data)

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

    def _read_on(self, max_bytes: int) -> None:
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            identity, state = (status.st_dev, status.st_ino), self._state
            if self._identity not in (None, identity) or status.st_size < state.position:
                self._rows, self._line = [], 1
                state = IndexState(state.generation + 1)
            self._identity = identity
            position, waits_for = state.position, 0
            for line in read_lines(file, self._line, position, self._max_line_bytes):
                if not line.ended and not isinstance(parse_line(line.data or b""), dict):
                    waits_for = line.size
                    break
                self._take(line)
                # A line without an end keeps its number, for the end that may follow it.
                self._line = line.number + line.ended
                position = line.offset + line.size + line.ended
                if position - state.position >= max_bytes:
                    break
        size = max(status.st_size, position + waits_for)
        self._state = IndexState(state.generation, len(self._rows), position, size, waits_for)

    def _take(self, line: Line) -> None:
        if line.data is None:
            problem = f"has {line.size} bytes, more than {self._max_line_bytes}"
            self._rows.append(broken_row(line.number, line.offset, line.size, problem))
        elif line.data.strip():
            record = parse_line(line.data)
            if isinstance(record, str):
                self._rows.append(broken_row(line.number, line.offset, line.size, record))
            else:
                self._rows.append(facts_of(record, line=line.number, offset=line.offset, size=line.size))


@dataclass(frozen=True, slots=True)
class Step:
    """One file of a dump."""

    path: Path

    @property
    def label(self) -> str:
        """The file's name without its suffix: for a training's dump the number of its step."""
        return self.path.name.removesuffix(SUFFIX)

    @property
    def order(self) -> tuple[bool, int, str]:
        """Numbers by size, then names."""
        is_number = self.label.isascii() and self.label.isdigit()
        return (not is_number, int(self.label) if is_number else 0, self.label)


class DumpFolder:
    """The dumps below `path`, a folder with `{step}.jsonl` files, or one such file. Raises ConfigError when it is
    neither; an empty folder is one whose first step is still to come. May be used from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_file = path.is_file()
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, StepFile] = OrderedDict()
        self.steps: tuple[Step, ...] = ()
        if not self._is_file and not path.is_dir():
            raise ConfigError(f"path is {str(path)!r}, which is neither a folder nor a file")
        self.refresh()
        if not self.steps:
            self._refuse_parent_of_runs()

    def refresh(self) -> tuple[Step, ...]:
        """Looks for new steps. A folder that can't be read keeps the steps that it had."""
        if self._is_file:
            self.steps = (Step(self.path),)
            return self.steps
        try:
            paths = [path for path in self.path.iterdir() if path.suffix == SUFFIX and path.is_file()]
        except OSError:
            return self.steps
        self.steps = tuple(sorted(map(Step, paths), key=lambda step: step.order))
        return self.steps

    def named(self, label: str) -> Step | None:
        """The step of that label."""
        return next((step for step in self.steps if step.label == label), None)

    def open(self, step: Step) -> StepFile:
        """Its index, which may have to be built: `advance()` it until it is complete."""
        with self._lock:
            file = self._open.get(step.path)
            if file is None:
                file = self._open[step.path] = StepFile(step.path)
            self._open.move_to_end(step.path)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
            return file

    def _refuse_parent_of_runs(self) -> None:
        try:
            runs = [folder for folder in self.path.iterdir() if folder.is_dir() and any(folder.glob("*" + SUFFIX))]
            newest = max(runs, key=lambda folder: folder.stat().st_mtime, default=None)
        except OSError as error:
            raise ConfigError(f"path is {str(self.path)!r}: {error.strerror or error}") from None
        if newest is not None:
            raise ConfigError(
                f"path is {str(self.path)!r}, which holds {len(runs)} runs and no step itself; the newest is {newest}"
            )
