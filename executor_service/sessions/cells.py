"""Reads what the interpreter of a session says of a cell, and judges it. Pure.

What comes is a claim of untrusted code: types, sizes and order are checked, nothing is believed that could cost others
something, and a claim that makes no sense ends the session.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor_service.guest.protocol.wire import MAX_TABLE
from executor_service.guest.serve.display import MAX_DISPLAYS, MAX_FORMS, MAX_KIND
from executor_service.model import Cause, Display, FileStatus, Limits, Outcome, OutputFile

_MAX_RAISED = 100_000
"""Characters of the text of an exception, and of its traceback."""
_MAX_LINES = 10_000
"""Lines of the traceback."""


@dataclass(frozen=True, slots=True)
class CellAnswer:
    """A cell that came to its end."""

    exit_code: int
    exited: bool = False
    """It called exit."""
    error: str = ""
    """One line about the exception that ended it."""
    raised: Mapping[str, Any] | None = None
    """The exception that ended it, where it was to be told and not printed: `ename`, `evalue`, `traceback` (lines)."""
    replaced: str = ""
    """Sentence about a shell that has ended, and was replaced."""
    problem: str = ""
    """Why its code was not run."""
    displays: tuple[Display, ...] = ()
    files: tuple[OutputFile, ...] = ()
    cpu_s: float = 0.0
    peak_bytes: int = 0
    resident_bytes: int = 0


def read_answer(
    head: Mapping[str, Any], blob: bytes, *, cell: int, paths: Sequence[str], return_bytes: int
) -> CellAnswer:
    """ValueError for what is no answer to this cell. `head` is flat: of text, finite numbers and 64-bit integers."""
    if head.get("type") != "done" or head.get("cell") != cell:
        raise ValueError(f"{head.get('type')!r} for cell {head.get('cell')!r} in place of the answer to cell {cell}")
    parts = _Parts(blob)
    try:
        size = _count(head["table"])
        if size > MAX_TABLE:
            raise ValueError(f"a table of {size} bytes")
        table = json.loads(parts.take(size)) if size else {}
        raised = _raised(parts, table["raised"]) if table.get("raised") else None
        displays = _displays(parts, table.get("displays", []))
        files = _files(parts, table.get("files", []), paths, return_bytes)
        if parts.left:
            raise ValueError(f"{parts.left} bytes more than it accounts for")
        return CellAnswer(
            exit_code=_count(head["exit_code"]) & 0xFF if not head.get("problem") else 1,
            exited=head.get("exited") is True,
            error=_text(head.get("error", "")),
            raised=raised,
            replaced=_text(head.get("replaced", "")),
            problem=_text(head.get("problem", "")),
            displays=displays,
            files=files,
            cpu_s=_seconds(head["cpu_s"]),
            peak_bytes=_count(head["peak_bytes"]),
            resident_bytes=_count(head["resident_bytes"]),
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"an answer that is not one: {type(error).__name__}: {error}") from None


class _Parts:
    """The bytes of an answer, from the first to the last."""

    def __init__(self, blob: bytes) -> None:
        self._blob = blob
        self._taken = 0

    @property
    def left(self) -> int:
        return len(self._blob) - self._taken

    def take(self, size: Any) -> bytes:
        """The next `size` bytes."""
        if _count(size) > self.left:
            raise ValueError("a size beyond what came")
        self._taken += size
        return self._blob[self._taken - size : self._taken]


def judge_cell(answer: CellAnswer, limits: Limits, *, timed_out: bool) -> tuple[Outcome, Cause, int, int, str]:
    """Outcome, cause, exit code, signal and one sentence, for a cell whose session lives on."""
    if timed_out:
        state = answer.replaced or "The session's state is kept."
        message = f"Interrupted: the cell ran for longer than {limits.wall_time_s:g} s. {state}"
        return Outcome.TIME_LIMIT, Cause.POLICY, 128 + signal.SIGINT, signal.SIGINT, message
    if answer.problem:
        return Outcome.NONZERO_EXIT, Cause.POLICY, 1, 0, f"Not run: {answer.problem}."
    message = "The cell called exit; the session goes on." if answer.exited else answer.replaced or answer.error
    outcome = Outcome.NONZERO_EXIT if answer.exit_code else Outcome.FINISHED
    return outcome, Cause.POLICY, answer.exit_code, 0, message


def _displays(parts: _Parts, told: Sequence[Any]) -> tuple[Display, ...]:
    if not isinstance(told, list) or len(told) > MAX_DISPLAYS:
        raise ValueError("too many displays")
    displays = []
    for sizes, cut in told:
        if len(sizes) > MAX_FORMS:
            raise ValueError("a display of too many forms")
        data = {_utf8(kind, MAX_KIND): parts.take(size) for kind, size in sizes.items()}
        displays.append(Display(data, cut is True))
    return tuple(displays)


def _files(parts: _Parts, told: Sequence[Any], paths: Sequence[str], most: int) -> tuple[OutputFile, ...]:
    if len(told) != len(paths):
        raise ValueError("other files than were asked for")
    files = []
    for path, (word, size) in zip(paths, told, strict=True):
        status = FileStatus(word.upper())
        content = parts.take(size) if status is FileStatus.RETURNED else b""
        files.append(OutputFile(path, status, content, _count(size)))
    if (size := sum(len(file.content) for file in files)) > most:
        raise ValueError(f"{size} bytes of files")
    return tuple(files)


def _raised(parts: _Parts, sizes: Sequence[Any]) -> dict[str, Any]:
    name, text, trace = (parts.take(size).decode("utf-8", "replace")[:_MAX_RAISED] for size in sizes)
    return {"ename": name[:MAX_KIND], "evalue": text, "traceback": trace.splitlines()[:_MAX_LINES]}


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"a count that is a {type(value).__name__} beyond its range")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or value < 0:
        raise ValueError("a duration that is none")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a sentence that is no text")
    return value


def _utf8(value: Any, most: int) -> str:
    """Text that a message can carry: JSON may hold lone surrogates."""
    if not isinstance(value, str) or len(value) > most:
        raise ValueError("a text that is none, or too long")
    return value.encode("utf-8", "replace").decode()
