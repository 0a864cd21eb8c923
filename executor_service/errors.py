"""Errors in place of a result: the executor raises them, a status says them, and its client raises them again.

Invariants: each says whose fault it can be; a reason, if the server gives one, decides before the status does. What is
derived from them elsewhere is the server's own, and its client raises the one below which it stands here.
"""

from __future__ import annotations

from typing import ClassVar, Self

import grpc
import grpc.aio

from executor_service.model import Cause
from fairbox.errors import FairboxError, FieldError
from fairbox.net.grpc_errors import error_reason, field_errors, retry_after, why_unavailable

DRAINING = "DRAINING"
"""Reason of a server that ends, beside UNAVAILABLE."""
_RETRY_AFTER_S = 1.0
"""Seconds to wait if a server did not say when to ask again."""


class ExecutorError(FairboxError):
    """No result: the executor did not do its job, or was not allowed to."""

    cause = Cause.INFRA
    """No program ran to its end, so the code can't have caused it."""
    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNAVAILABLE
    """Status that says it."""
    reason: ClassVar[str] = ""
    """Given by the server with a status that has several meanings."""

    @classmethod
    def from_call(cls, message: str, error: grpc.aio.AioRpcError) -> Self:
        """The error of a call whose status says this."""
        return cls(message)


class ExecutorUnavailable(ExecutorError):
    """It can't be reached, is draining, can't reach its limiter, or did not answer in time."""


class InvalidRequest(ExecutorError):
    """The request is not acceptable. `fields` names each field and what is allowed."""

    cause = Cause.POLICY
    """The code is a field of the request, so it can have caused this: empty, too long, not valid Unicode."""
    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, message: str, fields: tuple[FieldError, ...]) -> None:
        super().__init__(message)
        self.fields = fields

    @classmethod
    def from_call(cls, message: str, error: grpc.aio.AioRpcError) -> Self:
        return cls(message, tuple(field_errors(error)))


class Overloaded(ExecutorError):
    """Its queue is full. Ask again after `retry_after_s` seconds."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    subject: ClassVar[str] = ""
    """The bound that was reached, as the server says it."""
    status = 429
    """Under this name and number an adaptive limit hears of it (`limiter.outcome_of`)."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    @classmethod
    def from_call(cls, message: str, error: grpc.aio.AioRpcError) -> Self:
        return cls(message, retry_after(error) or _RETRY_AFTER_S)


class NotAllowed(ExecutorError):
    """The call had no token that is good there, or one that is for something else: another role, another tenant."""

    code = grpc.StatusCode.PERMISSION_DENIED


class NotFound(ExecutorError):
    """This server does not have the session, workspace or image: it was removed, or another server has it."""

    code = grpc.StatusCode.NOT_FOUND


class WorkspaceTooLarge(ExecutorError):
    """At its isolation level the server would have to copy the workspace, which is above what it, or the limits of the
    request, allow."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "WORKSPACE_TOO_LARGE"


class SessionNotFound(NotFound):
    """The session has ended, or is another server's. Where its own code can have ended it, the cause is POLICY."""

    reason = "SESSION_NOT_FOUND"

    def __init__(self, message: str, cause: Cause = Cause.INFRA) -> None:
        super().__init__(message)
        self.cause = cause

    @classmethod
    def from_call(cls, message: str, error: grpc.aio.AioRpcError) -> Self:
        return cls(message, Cause(error_reason(error)[1].get("cause", Cause.INFRA)))


class SessionBusy(ExecutorError):
    """The session runs a cell, and what was asked for does not wait, or too many cells wait already."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SESSION_BUSY"


class CannotBranch(ExecutorError):
    """The session can't be forked now: threads, child processes or tasks of its code would be lost."""

    cause = Cause.POLICY
    """The code's doing: it has left something running."""
    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SESSION_CANNOT_BRANCH"


class CannotSnapshot(ExecutorError):
    """No snapshot of the session can be had: it has no image, or its files are too many, or such as no image has."""

    cause = Cause.POLICY
    """The code's doing: what it has written. A session without an image is its caller's."""
    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SESSION_CANNOT_SNAPSHOT"


class LeaseRefused(ExecutorError):
    """The lease can't be bound: it ended, or another executor has bound it. Take a new one."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class RunLost(ExecutorError):
    """The program may have run, and its result is lost. A new attempt takes a new request_id and a new lease."""

    code = grpc.StatusCode.ABORTED


_OF_REASON: dict[str, type[ExecutorError]] = {
    kind.reason: kind for kind in (WorkspaceTooLarge, SessionNotFound, SessionBusy, CannotBranch, CannotSnapshot)
}
_OF_CODE: dict[grpc.StatusCode, type[ExecutorError]] = {
    **{kind.code: kind for kind in (InvalidRequest, Overloaded, NotAllowed, NotFound, LeaseRefused, RunLost)},
    grpc.StatusCode.UNAUTHENTICATED: NotAllowed,
}


def error_of_call(error: grpc.aio.AioRpcError, target: str) -> ExecutorError:
    """The typed error of a call that failed."""
    message = f"executor on {target}: {why_unavailable(error.details() or '') or error.code().name}"
    kind = _OF_REASON.get(error_reason(error)[0]) or _OF_CODE.get(error.code(), ExecutorUnavailable)
    return kind.from_call(message, error)
