"""Answers in place of a result: SandboxFusion's statuses and the shape of its bodies. Pure.

422 names each bad field, 504 says that the work was not done and that the client may ask again, everything else is one
sentence in `detail`. No body holds a traceback, and none echoes more than a few hundred characters of what was sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import Any, ClassVar

from pydantic import ValidationError

from fairbox.errors import FieldErrors

_MAX_ECHO = 400
"""Characters of a bad input that an answer repeats."""
_AT_ONCE = 256 << 10
"""Characters of a text that are made in one piece: some milliseconds where all are escaped."""
_NESTED = 5
"""Depth of programs' texts in a reply; the deepest are the displays of a notebook's cells."""


class Refused(Exception):
    """A body with `detail`. `retry_after_s` is set where nothing has run and it may be asked for again."""

    status: ClassVar[int]

    def __init__(self, detail: str | list[dict[str, Any]], retry_after_s: float | None = None) -> None:
        super().__init__(str(detail))
        self.detail = detail
        self.retry_after_s = retry_after_s


class Unavailable(Refused):
    """Not done, for reasons that are not the program's."""

    status = 504


class Unacceptable(Refused):
    """A bad request: `detail` has one entry for each field."""

    status = 422
    detail: list[dict[str, Any]]


class BadRequest(Refused):
    """A dataset, a judge or a row that this server can't work with."""

    status = 400


def encode(value: object) -> bytes:
    """`value` as JSON in UTF-8. Lone surrogates, which only an echo can have, become escapes. It is made in pieces, so
    that a thread which makes something long lets others have their turn."""
    return b"".join(_pieces(value, _NESTED))


def _dumps(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _pieces(value: object, depth: int) -> Iterator[bytes]:
    match value:
        case str() if len(value) > _AT_ONCE:
            yield b'"'
            for start in range(0, len(value), _AT_ONCE):
                yield _dumps(value[start : start + _AT_ONCE])[1:-1]
            yield b'"'
        case dict() if value and depth:
            for sign, (name, each) in zip(chain(b"{", repeat(b","[0])), value.items(), strict=False):
                yield bytes([sign]) + _dumps(str(name)) + b":"
                yield from _pieces(each, depth - 1)
            yield b"}"
        case list() if value and depth:
            for sign, each in zip(chain(b"[", repeat(b","[0])), value, strict=False):
                yield bytes([sign])
                yield from _pieces(each, depth - 1)
            yield b"]"
        case _:
            yield _dumps(value)


def details_of(error: ValidationError) -> list[dict[str, Any]]:
    """The entries of a 422 body."""
    found: list[dict[str, Any]] = []
    for entry in error.errors(include_url=False):
        detail = {**entry, "loc": ["body", *entry["loc"]], "input": _echo(entry["input"])}
        if "ctx" in entry:
            detail["ctx"] = {name: _echo(value) for name, value in entry["ctx"].items()}
        found.append(detail)
    return found


def json_error(problem: str) -> list[dict[str, Any]]:
    """For a body that is not JSON."""
    ctx = {"error": problem}
    return [{"type": "json_invalid", "loc": ["body", 0], "msg": "JSON decode error", "input": {}, "ctx": ctx}]


def value_error(message: str, *loc: str) -> dict[str, Any]:
    """An entry of a 422 body for what this executor refuses, at `loc` of the body."""
    return {"type": "value_error", "loc": ["body", *loc], "msg": message, "input": None, "ctx": {"error": message}}


def unacceptable(errors: FieldErrors, names: Mapping[str, str]) -> Unacceptable:
    """The executor's field errors, in the names of this interface (`names`: executor's field -> SandboxFusion's)."""
    words = [(error.field.partition("[")[0], error.problem) for error in errors.errors]
    fields = [(names.get(word, word), problem) for word, problem in words]
    return Unacceptable([value_error(f"{field} {problem}", field) for field, problem in fields])


def _echo(value: object) -> object:
    """Something that is JSON, and short."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # an exception, a number that JSON does not have
        return str(value)[:_MAX_ECHO]
    return value if len(text) <= _MAX_ECHO else text[:_MAX_ECHO] + "..."
