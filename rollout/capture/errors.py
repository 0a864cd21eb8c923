"""Error answers in place of a turn: statuses and bodies as OpenAI's clients know them. Pure.

`{"error": {"message", "type", "param", "code"}}`, and `fairbox.cause`, which says who could have caused it: a refused
request is the agent's (`task`), 429 and everything from 500 on the service's (`infra`). No body holds a traceback.
"""

from __future__ import annotations

from typing import Any

from executor_service import Cause
from fairbox.errors import FairboxError

_KINDS = {401: "authentication_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 503: "engine_unavailable", 504: "deadline_exceeded"}
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}, 503: {"Retry-After": "1"}}
"""Seconds until asking again can help: turns take about as long. After 503 and 504 nothing was recorded, so it is
safe."""


class UnknownTrajectoryError(FairboxError):
    """No trajectory of this id is held: none was asked for, or it was deleted or given up for being idle."""


class ApiError(Exception):
    """A request that gets no turn. Its status tells kind and headers, and the `code` unless one is given."""

    def __init__(self, status: int, message: str, *, code: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.code = code or _CODES[status]
        self.param = param

    @property
    def cause(self) -> Cause:
        """The party that could have caused it."""
        return Cause.INFRA if self.status >= 500 or self.status == 429 else Cause.TASK

    def body(self) -> dict[str, Any]:
        """As JSON."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error, "fairbox": {"cause": self.cause}}

    def headers(self) -> dict[str, str]:
        """Headers that go with the status."""
        return _HEADERS.get(self.status, {})


def bad_parameter(param: str, problem: str, *, code: str = "invalid_value") -> ApiError:
    """400: `param` is the field's path as the client wrote it, `problem` a clause about it."""
    return ApiError(400, f"{param} {problem}", code=code, param=param)
