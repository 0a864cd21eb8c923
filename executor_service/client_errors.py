"""From gRPC statuses, of calls and of items of a batch, to the errors of `executor_service.errors`."""

from __future__ import annotations

import grpc
import grpc.aio

from executor_service import errors
from executor_service.errors import (
    ExecutorError,
    ExecutorUnavailable,
    InvalidRequest,
    LeaseRefused,
    NotFound,
    Overloaded,
    RunLost,
)
from executor_service.model import Cause
from fairbox.errors import FieldError
from fairbox.grpc_errors import error_reason, field_errors, retry_after

__all__ = ["error_of_call", "error_of_item"]

_RETRY_AFTER_S = 1.0
"""Where a server did not say when to ask again."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def error_of_call(error: grpc.aio.AioRpcError, target: str) -> ExecutorError:
    """The typed error of a call that failed."""
    message = f"executor on {target}: {error.details() or error.code().name}"
    match error_reason(error):
        case (errors.SESSION_NOT_FOUND, facts):
            return errors.SessionNotFound(message, Cause(facts.get("cause", Cause.INFRA)))
        case (errors.SESSION_BUSY, _):
            return errors.SessionBusy(message)
        case (errors.SESSION_CANNOT_BRANCH, _):
            return errors.CannotBranch(message)
        case (errors.WORKSPACE_TOO_LARGE, _):
            return errors.WorkspaceTooLarge(message)
    return _typed(error.code(), message, tuple(field_errors(error)), retry_after(error))


def error_of_item(code: int, message: str, target: str) -> ExecutorError:
    """The typed error of an item of a batch."""
    status = _CODES.get(code, grpc.StatusCode.UNKNOWN)
    return _typed(status, f"executor on {target}: {message or status.name}")


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
        case _:
            return ExecutorUnavailable(message)
