"""What a client of the executor has to expect instead of a result. Each says whose fault it can be."""

from __future__ import annotations

from executor_service.model import Cause
from fairbox.errors import FairboxError, FieldError

__all__ = [
    "CannotBranch",
    "ExecutorError",
    "ExecutorUnavailable",
    "InvalidRequest",
    "LeaseRefused",
    "NotAllowed",
    "NotFound",
    "Overloaded",
    "RunLost",
    "SessionBusy",
    "SessionNotFound",
    "WorkspaceTooLarge",
]

DRAINING = "DRAINING"
SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
SESSION_BUSY = "SESSION_BUSY"
SESSION_CANNOT_BRANCH = "SESSION_CANNOT_BRANCH"
WORKSPACE_TOO_LARGE = "WORKSPACE_TOO_LARGE"
"""Reasons that the server gives with a status."""


class ExecutorError(FairboxError):
    """No result: the executor did not do its job, or was not allowed to."""

    cause = Cause.INFRA
    """No program ran to its end, so the code can't have caused it."""


class ExecutorUnavailable(ExecutorError):  # noqa: N818
    """It can't be reached, is draining, can't reach its limiter, or did not answer in time."""


class InvalidRequest(ExecutorError):  # noqa: N818
    """The request is not acceptable. `fields` names each field and what is allowed."""

    cause = Cause.POLICY
    """The code is a field of the request, so it can have caused this: empty, too long, not valid Unicode."""

    def __init__(self, message: str, fields: tuple[FieldError, ...]) -> None:
        super().__init__(message)
        self.fields = fields


class Overloaded(ExecutorError):  # noqa: N818
    """Its queue is full. Ask again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotAllowed(ExecutorError):  # noqa: N818
    """The call had no token that is good there, or one that is for something else: another role, another tenant."""


class NotFound(ExecutorError):  # noqa: N818
    """This server does not have the session or the workspace: it was removed, or another server has it."""


class WorkspaceTooLarge(ExecutorError):  # noqa: N818
    """At its isolation level the server would have to copy the workspace, which is above what it, or the limits of the
    request, allow."""


class SessionNotFound(NotFound):
    """The session has ended, or is another server's. Where its own code can have ended it, the cause is POLICY."""

    def __init__(self, message: str, cause: Cause = Cause.INFRA) -> None:
        super().__init__(message)
        self.cause = cause


class SessionBusy(ExecutorError):  # noqa: N818
    """The session runs a cell, and what was asked for does not wait, or too many cells wait already."""


class CannotBranch(ExecutorError):  # noqa: N818
    """The session can't be forked now: threads, child processes or tasks of its code would be lost."""

    cause = Cause.POLICY
    """What its code has left running is the code's doing."""


class LeaseRefused(ExecutorError):  # noqa: N818
    """The lease can't be bound: it ended, or another executor has bound it. Take a new one."""


class RunLost(ExecutorError):  # noqa: N818
    """The program may have run, and its result is lost. A new attempt takes a new request_id and a new lease."""
