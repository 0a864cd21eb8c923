"""What is answered instead of a turn: statuses and bodies as OpenAI's clients know them. Pure.

`{"error": {"message", "type", "param", "code"}}`, and `fairbox.cause`, which says who could have caused it: a refused
request is the agent's (`task`), everything from 500 on is the service's (`infra`). No body holds a traceback.
"""

from __future__ import annotations

from typing import Any

from executor_service import Cause
from fairbox.errors import FairboxError

__all__ = [
    "ApiError",
    "UnknownTrajectoryError",
    "bad_parameter",
    "deadline_passed",
    "engine_failed",
    "not_found",
    "overloaded",
    "too_long",
    "unauthorized",
]

RETRY_S = 1.0
"""Advice to a client that met a bound: turns take about as long."""


class UnknownTrajectoryError(FairboxError):
    """No trajectory of this id is held: none was asked for, or it was deleted or given up for being idle."""


class ApiError(Exception):
    """A request that gets no turn. `retry_after_s` is set where asking again can help."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str,
        code: str,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def cause(self) -> Cause:
        """Who could have caused it."""
        return Cause.INFRA if self.status >= 500 or self.status == 429 else Cause.TASK

    def body(self) -> dict[str, Any]:
        """As JSON."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error, "fairbox": {"cause": self.cause}}

    def headers(self) -> dict[str, str]:
        """Those that go with the status."""
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after_s)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def bad_parameter(param: str, problem: str, *, code: str = "invalid_value") -> ApiError:
    """400: `param` is the field's path as the client wrote it, `problem` a clause about it."""
    return ApiError(400, f"{param} {problem}", kind="invalid_request_error", code=code, param=param)


def too_long(message: str) -> ApiError:
    """400 with the code by which agents know that they have to shorten their history."""
    kind, code = "invalid_request_error", "context_length_exceeded"
    return ApiError(400, message, kind=kind, code=code, param="messages")


def not_found(message: str, *, code: str, param: str | None = None) -> ApiError:
    """404."""
    return ApiError(404, message, kind="invalid_request_error", code=code, param=param)


def unauthorized() -> ApiError:
    """401."""
    message = "the bearer token is missing or wrong; clients of OpenAI's send their api_key as it"
    return ApiError(401, message, kind="authentication_error", code="invalid_api_key")


def overloaded(message: str, retry_after_s: float = RETRY_S) -> ApiError:
    """429: a bound of this server is reached."""
    kind, code = "rate_limit_error", "rate_limit_exceeded"
    return ApiError(429, message, kind=kind, code=code, retry_after_s=retry_after_s)


def engine_failed(message: str) -> ApiError:
    """503: nothing was recorded, so asking again is safe."""
    return ApiError(503, message, kind="server_error", code="engine_unavailable", retry_after_s=RETRY_S)


def deadline_passed(message: str) -> ApiError:
    """504: nothing was recorded, so asking again is safe."""
    return ApiError(504, message, kind="server_error", code="deadline_exceeded")
