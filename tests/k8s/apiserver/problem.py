"""What an API server says when it refuses: a Status object with a code, a reason and, for bad fields, their causes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.k8s.apiserver.kinds import Kind

__all__ = [
    "FieldProblem",
    "Problem",
    "already_exists",
    "bad_request",
    "conflict",
    "forbidden",
    "invalid",
    "not_found",
    "required",
    "wrong",
]

_NOT_SHOWN = object()


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One field that is wrong, in the words of an API server."""

    path: str
    """As `spec.template.spec.containers[0].name`."""
    kind: str
    """`Invalid value`, `Required value`, `Not found`, `Duplicate value`, `Forbidden` or `Unsupported value`."""
    detail: str = ""
    value: Any = _NOT_SHOWN

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"

    @property
    def message(self) -> str:
        """All but the path."""
        shown = "" if self.value is _NOT_SHOWN else f": {json.dumps(self.value)}"
        return f"{self.kind}{shown}" + (f": {self.detail}" if self.detail else "")

    @property
    def cause(self) -> dict[str, str]:
        """As it stands in a Status."""
        words = "".join(word.capitalize() for word in self.kind.split())
        return {"reason": f"FieldValue{words.removesuffix('Value')}", "message": self.message, "field": self.path}


def wrong(path: str, value: Any, detail: str) -> FieldProblem:
    return FieldProblem(path, "Invalid value", detail, value)


def required(path: str, detail: str = "") -> FieldProblem:
    return FieldProblem(path, "Required value", detail)


class Problem(Exception):  # noqa: N818 - it is an answer
    """A request that is refused."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }
        if details:
            self.status["details"] = details


def bad_request(message: str) -> Problem:
    return Problem(400, "BadRequest", message)


def _about(kind: Kind, name: str) -> dict[str, Any]:
    return {"name": name, "group": kind.group, "kind": kind.plural}


def not_found(kind: Kind, name: str) -> Problem:
    return Problem(404, "NotFound", f'{kind.resource} "{name}" not found', _about(kind, name))


def already_exists(kind: Kind, name: str) -> Problem:
    return Problem(409, "AlreadyExists", f'{kind.resource} "{name}" already exists', _about(kind, name))


def conflict(kind: Kind, name: str, why: str) -> Problem:
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return Problem(409, "Conflict", message, _about(kind, name))


def forbidden(kind: Kind, name: str, why: str) -> Problem:
    return Problem(403, "Forbidden", f'{kind.resource} "{name}" is forbidden: {why}', _about(kind, name))


def invalid(kind: Kind, name: str, problems: Sequence[FieldProblem]) -> Problem:
    """422 with every field that is wrong."""
    words = ", ".join(map(str, problems))
    listed = f"[{words}]" if len(problems) > 1 else words
    title = kind.kind + (f".{kind.group}" if kind.group else "")
    details = {"name": name, "group": kind.group, "kind": kind.kind, "causes": [each.cause for each in problems]}
    return Problem(422, "Invalid", f'{title} "{name}" is invalid: {listed}', details)
