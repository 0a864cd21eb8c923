"""What is answered instead of a result: SandboxFusion's statuses and the shape of its bodies. Pure.

422 names each bad field, 504 says that the work was not done and may be asked for again, everything else is one
sentence in `detail`. No body holds a traceback, and none echoes more than a few hundred characters of what was sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fairbox.errors import FieldError, FieldErrors

__all__ = ["BadRequest", "Unacceptable", "Unavailable", "details_of", "encode", "json_error", "unacceptable"]

_MAX_ECHO = 400
"""Characters of a bad input that an answer repeats."""


class Unavailable(Exception):  # noqa: N818 - a fact about the service
    """504: not done, for reasons that are not the program's. `retry_after_s` is set where nothing has run."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unacceptable(Exception):  # noqa: N818 - a fact about the request
    """422: `details` has one entry for each field."""

    def __init__(self, details: list[dict[str, Any]]) -> None:
        super().__init__(str(details))
        self.details = details


class BadRequest(Exception):  # noqa: N818 - a fact about the request
    """400: a dataset, a judge or a row that this server can't work with."""


def encode(value: object) -> bytes:
    """`value` as JSON in UTF-8. Lone surrogates, which only an echo can have, become escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def details_of(error: ValidationError) -> list[dict[str, Any]]:
    """The entries of a 422 body."""
    found: list[dict[str, Any]] = []
    for entry in error.errors(include_url=False):
        detail: dict[str, Any] = {
            "type": entry["type"],
            "loc": ["body", *entry["loc"]],
            "msg": entry["msg"],
            "input": _echo(entry["input"]),
        }
        if "ctx" in entry:
            detail["ctx"] = {name: _echo(value) for name, value in entry["ctx"].items()}
        found.append(detail)
    return found


def json_error(problem: str) -> list[dict[str, Any]]:
    """For a body that is not JSON."""
    return [{"type": "json_invalid", "loc": ["body", 0], "msg": "JSON decode error", "input": {}, "ctx": _ctx(problem)}]


def unacceptable(errors: FieldErrors, names: Mapping[str, str]) -> Unacceptable:
    """What the executor found wrong, with the names of this interface (`names`: field of ours -> field of theirs)."""
    return Unacceptable([_detail(error, names) for error in errors.errors])


def _detail(error: FieldError, names: Mapping[str, str]) -> dict[str, Any]:
    word = error.field.partition("[")[0]
    field = names.get(word, word)
    message = f"{field} {error.problem}"
    return {"type": "value_error", "loc": ["body", field], "msg": message, "input": None, "ctx": _ctx(message)}


def _ctx(problem: str) -> dict[str, str]:
    return {"error": problem}


def _echo(value: object) -> object:
    """Something that is JSON, and short."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # an exception, a number that JSON does not have
        return str(value)[:_MAX_ECHO]
    return value if len(text) <= _MAX_ECHO else text[:_MAX_ECHO] + "..."
