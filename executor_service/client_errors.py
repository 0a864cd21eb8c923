"""From gRPC statuses of calls to the errors of `executor_service.errors`."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
import grpc.aio

from executor_service import errors
from executor_service.errors import (
    ExecutorError,
    ExecutorUnavailable,
    InvalidRequest,
    LeaseRefused,
    NotAllowed,
    NotFound,
    Overloaded,
    RunLost,
)
from executor_service.model import Cause
from fairbox.errors import FieldError
from fairbox.grpc_errors import error_reason, field_errors, retry_after

__all__ = ["error_of_call"]

_RETRY_AFTER_S = 1.0
"""Where a server did not say when to ask again."""


def error_of_call(error: grpc.aio.AioRpcError, target: str) -> ExecutorError:
    """The typed error of a call that failed."""
    message = f"executor on {target}: {error.details() or error.code().name}"
    found = _of_reason(*error_reason(error), message)
    return found or _typed(error.code(), message, tuple(field_errors(error)), retry_after(error))


def _of_reason(reason: str, facts: Mapping[str, str], message: str) -> ExecutorError | None:
    """The error of a status that has several meanings; None where the status says all."""
    match reason:
        case errors.SESSION_NOT_FOUND:
            return errors.SessionNotFound(message, Cause(facts.get("cause", Cause.INFRA)))
        case errors.SESSION_BUSY:
            return errors.SessionBusy(message)
        case errors.SESSION_CANNOT_BRANCH:
            return errors.CannotBranch(message)
        case errors.WORKSPACE_TOO_LARGE:
            return errors.WorkspaceTooLarge(message)
    return None


def _typed(
    code: grpc.StatusCode, message: str, fields: tuple[FieldError, ...] = (), retry_after_s: float | None = None
) -> ExecutorError:
    match code:
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidRequest(message, fields)
        case grpc.StatusCode.NOT_FOUND:
            return NotFound(message)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(message, retry_after_s or _RETRY_AFTER_S)
        case grpc.StatusCode.FAILED_PRECONDITION:
            return LeaseRefused(message)
        case grpc.StatusCode.ABORTED:
            return RunLost(message)
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return NotAllowed(message)
        case _:
            return ExecutorUnavailable(message)
