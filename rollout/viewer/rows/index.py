"""The steps of a dump, and byte offsets and facts of their rows, built as a file is read and as it grows.

A step is a file, `{step}.jsonl`. `StepFile` reads it a slice at a time, from any thread. Invariants: a line is a row
as soon as it has its end; a last line without one is a row if it is a whole object already, and is waited for
otherwise; a broken line is a row that says what is wrong with it; a file that was replaced or shortened is read anew.
What is held in memory is the facts, and one line. Steps are ordered by number, whatever their names' lengths, and files
without a number follow by name; at most `MAX_OPEN` indexes are held, others are built anew when they are needed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from fairbox.errors import ConfigError
from rollout.viewer.rows.summary import RowSummary, facts_of, parse_line

MAX_LINE_BYTES = 64 << 20
"""A longer line is broken: 32k tokens with their texts take about one MiB."""
SLICE_BYTES = 1 << 20
"""Read at once: some 10 ms of work."""
MAX_OPEN = 8
"""Indexes that are held; one of 100,000 rows takes about 100 MB."""
SUFFIX = ".jsonl"
TRAINING = "metrics.jsonl"
"""Name of the file that `fairbox train` writes beside its folder of steps."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file."""

    number: int
    offset: int
    size: int
    """Bytes, without its end."""
    data: bytes | None
    """Without its end; None if it is too long."""
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


def read_row(row: RowSummary) -> dict[str, Any] | str:
    """The whole row, or why it can't be had."""
    data = row.problem or read_bytes(row)
    return data if isinstance(data, str) else parse_line(data)


def read_bytes(row: RowSummary, limit: int | None = None) -> bytes | str:
    """The line as it stands in the file, its first `limit` bytes, or why it can't be had."""
    size = row.size if limit is None else min(row.size, limit)
    try:
        with row.path.open("rb") as file:
            file.seek(row.offset)
            data = file.read(size)
    except OSError as error:
        return error.strerror or str(error)
    return data if len(data) == size else "the file was shortened"


class StepFile:
    """A dump on disk. `advance()` may be called from any thread, and takes no longer than a slice or a row does."""

    def __init__(self, path: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.path = path
        self.rows: list[RowSummary] = []
        """Only grows; of a file that was replaced it is another list."""
        self.size = self.position = self.waits_for = 0
        """Bytes of the file when it was last looked at, those that were read, and those of a last line that is not
        whole."""
        self.problem = ""
        """Why the file could not be read; empty if it could."""
        self._max_line_bytes = max_line_bytes
        self._lock = threading.Lock()
        self._line = 1
        self._identity: tuple[int, int] | None = None

    @property
    def complete(self) -> bool:
        """Says whether everything that was there has been read."""
        return self.position + self.waits_for >= self.size

    @property
    def percent(self) -> int:
        """The share that has been read."""
        return 100 * self.position // max(1, self.size)

    def advance(self, max_bytes: int = SLICE_BYTES) -> bool:
        """Reads up to `max_bytes` more, or a line; whether that was all. A file that can't be read has a `problem`."""
        with self._lock:
            try:
                self._read_on(max_bytes)
                self.problem = ""
            except OSError as error:
                self.problem = error.strerror or str(error)
                self.size, self.waits_for = self.position, 0
            return self.complete

    def _read_on(self, max_bytes: int) -> None:
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if self._identity not in (None, identity) or status.st_size < self.position:
                self.rows, self._line, self.position = [], 1, 0
            self._identity = identity
            start, waits_for = self.position, 0
            for line in read_lines(file, self._line, start, self._max_line_bytes):
                if not line.ended and not isinstance(parse_line(line.data or b""), dict):
                    waits_for = line.size
                    break
                if line.data is None or line.data.strip():
                    too_long = f"has {line.size} bytes, more than {self._max_line_bytes}"
                    record = too_long if line.data is None else parse_line(line.data)
                    row = facts_of(record, self.path, line=line.number, offset=line.offset, size=line.size)
                    self.rows.append(row)
                # A line without an end keeps its number, for the end that may follow it.
                self._line = line.number + line.ended
                self.position = line.offset + line.size + line.ended
                if self.position - start >= max_bytes:
                    break
        self.size, self.waits_for = max(status.st_size, self.position + waits_for), waits_for


def step_order(step: Path) -> tuple[bool, int, str]:
    """Numbers by size, then names."""
    is_number = step.stem.isascii() and step.stem.isdigit()
    return (not is_number, int(step.stem) if is_number else 0, step.stem)


class DumpFolder:
    """The dumps below `path`, a folder with `{step}.jsonl` files, one such file, or a folder that holds runs, of which
    it takes the one that was written to last. Raises ConfigError if it is none of them; an empty folder is one whose
    first step is still to come. May be used from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path if path.is_file() else _run_in(path)
        """The file, or the folder with the steps."""
        self.steps: tuple[Path, ...] = (path,) if path.is_file() else ()
        """The files, in their order."""
        self._is_file = path.is_file()
        self.open: Callable[[Path], StepFile] = lru_cache(MAX_OPEN)(StepFile)
        """The index of a step, which may have to be built: `advance()` it until it is complete."""
        self.refresh()

    def refresh(self) -> tuple[Path, ...]:
        """Looks for new steps. A folder that can't be read keeps the steps that it had."""
        if not self._is_file:
            with contextlib.suppress(OSError):
                self.steps = tuple(sorted(filter(_is_step, self.path.iterdir()), key=step_order))
        return self.steps

    def named(self, label: str) -> Path:
        """The step of that name, which is the file's without its suffix. Raises ConfigError if there is none."""
        found = next((step for step in self.steps if step.stem == label), None)
        if found is None:
            labels = [step.stem for step in self.steps]
            known = ", ".join(labels[:10]) + (f" and {len(labels) - 10} more" if len(labels) > 10 else "")
            raise ConfigError(f"step is {label!r}; {self.path} has {known or 'no steps yet'}")
        return found


def _is_step(path: Path) -> bool:
    return path.suffix == SUFFIX and path.name != TRAINING and path.is_file()


def _run_in(path: Path) -> Path:
    """The folder itself if it has steps, or none is below it either; else that of the step below it that was written
    to last: of `fairbox rollout` in a folder of the run, of `fairbox train` in its folder `rollouts`."""
    if not path.is_dir():
        raise ConfigError(f"path is {str(path)!r}, which is neither a folder nor a file")
    try:
        next(path.iterdir(), None)
        for patterns in (("*",), ("rollouts/*", "*/*", "*/rollouts/*")):
            files = [file for each in patterns for file in path.glob(each) if _is_step(file)]
            if files:
                return max(files, key=lambda file: file.stat().st_mtime).parent
    except OSError as error:
        raise ConfigError(f"path is {str(path)!r}: {error.strerror or error}") from None
    return path
