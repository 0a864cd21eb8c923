"""Reads what the interpreter of a session says of a cell, and judges it. Pure.

What comes is a claim of untrusted code: types, sizes and order are checked, nothing is believed that could cost others
something, and a claim that makes no sense ends the session.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor_service.model import Cause, Display, FileStatus, Limits, Outcome, OutputFile

MAX_DISPLAYS = 256
MAX_DISPLAY_BYTES = 16 << 20
MAX_FORMS = 64
"""MIME types of one displayed value."""
MAX_KIND = 256
"""Characters of a MIME type, and of the name of an exception."""
_MAX_MESSAGE = 1000
_MAX_RAISED = 100_000
"""Characters of the text of an exception, and lines of its traceback."""


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
    """ValueError for what is no answer to this cell."""
    if head.get("type") != "done" or head.get("cell") != cell:
        raise ValueError(f"{head.get('type')!r} for cell {head.get('cell')!r} in place of the answer to cell {cell}")
    try:
        displays, offset = _displays(head["displays"], blob)
        files, offset = _files(head["files"], blob, offset, paths, return_bytes)
        if offset != len(blob):
            raise ValueError(f"{len(blob)} bytes, of which {offset} are accounted for")
        return CellAnswer(
            exit_code=_count(head["exit_code"]) & 0xFF if not head.get("problem") else 1,
            exited=head.get("exited") is True,
            error=_text(head.get("error", "")),
            raised=_raised(head["raised"]) if "raised" in head else None,
            problem=_text(head.get("problem", "")),
            displays=displays,
            files=files,
            cpu_s=_seconds(head["cpu_s"]),
            peak_bytes=_count(head["peak_bytes"]),
            resident_bytes=_count(head["resident_bytes"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an answer that is not one: {type(error).__name__}: {error}") from None


def judge_cell(answer: CellAnswer, limits: Limits, *, timed_out: bool) -> tuple[Outcome, Cause, int, int, str]:
    """Outcome, cause, exit code, signal and one sentence, for a cell whose session lives on."""
    if timed_out:
        message = f"Interrupted: the cell ran for longer than {limits.wall_time_s:g} s. The session's state is kept."
        return Outcome.TIME_LIMIT, Cause.POLICY, 128 + signal.SIGINT, signal.SIGINT, message
    if answer.problem:
        return Outcome.NONZERO_EXIT, Cause.POLICY, 1, 0, f"Not run: {answer.problem}."
    message = "The cell called exit; the session goes on." if answer.exited else answer.error
    outcome = Outcome.NONZERO_EXIT if answer.exit_code else Outcome.FINISHED
    return outcome, Cause.POLICY, answer.exit_code, 0, message


def _displays(heads: Sequence[Mapping[str, Any]], blob: bytes) -> tuple[tuple[Display, ...], int]:
    if not isinstance(heads, list) or len(heads) > MAX_DISPLAYS:
        raise ValueError("too many displays")
    displays, offset = [], 0
    for head in heads:
        if len(head["sizes"]) > MAX_FORMS:
            raise ValueError("a display of too many forms")
        data = {}
        for kind, size in head["sizes"].items():
            data[_utf8(kind, MAX_KIND)] = _part(blob, offset, size)
            offset += size
        displays.append(Display(data, head["truncated"] is True))
    if offset > MAX_DISPLAY_BYTES:
        raise ValueError(f"{offset} bytes of displays")
    return tuple(displays), offset


def _files(
    heads: Sequence[Mapping[str, Any]], blob: bytes, offset: int, paths: Sequence[str], most: int
) -> tuple[tuple[OutputFile, ...], int]:
    if [head["path"] for head in heads] != list(paths):
        raise ValueError("other files than were asked for")
    start = offset
    files = []
    for head in heads:
        status = FileStatus(head["status"].upper())
        size = _count(head["size"])
        content = b""
        if status is FileStatus.RETURNED:
            content = _part(blob, offset, size)
            offset += size
        files.append(OutputFile(head["path"], status, content, size))
    if offset - start > most:
        raise ValueError(f"{offset - start} bytes of files")
    return tuple(files), offset


def _raised(told: Any) -> dict[str, Any]:
    lines = told["traceback"]
    if not isinstance(lines, list) or len(lines) > _MAX_RAISED:
        raise ValueError("a traceback that is none, or too long")
    kind, text = _utf8(told["ename"], MAX_KIND), _utf8(told["evalue"], _MAX_RAISED)
    return {"ename": kind, "evalue": text, "traceback": [_utf8(line, _MAX_RAISED) for line in lines]}


def _part(blob: bytes, offset: int, size: Any) -> bytes:
    if _count(size) > len(blob) - offset:
        raise ValueError("a size beyond what came")
    return blob[offset : offset + size]


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a count")
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is not a duration")
    return float(value)


def _text(value: Any) -> str:
    return _utf8(value, 4 * _MAX_MESSAGE)[:_MAX_MESSAGE]


def _utf8(value: Any, most: int) -> str:
    """Text that a message can carry: JSON may hold lone surrogates."""
    if not isinstance(value, str) or len(value) > most:
        raise ValueError("a text that is none, or too long")
    return value.encode("utf-8", "replace").decode()
