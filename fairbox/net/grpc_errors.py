"""Typed errors over gRPC: bad fields and full queues, with details that a program can read.

INVALID_ARGUMENT carries google.rpc.BadRequest (one violation a field); RESOURCE_EXHAUSTED carries google.rpc.RetryInfo
and google.rpc.QuotaFailure; a status with several meanings carries google.rpc.ErrorInfo. `retry_after()`,
`field_errors()` and `error_reason()` read them back.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from fairbox.errors import FieldError, FieldErrors

D = TypeVar("D", bound=Message)
_ROOM = 2000
"""Bytes of a status for the sentences about fields, which are in it twice: a client refuses metadata above 8 KiB."""
DOMAIN = "fairbox.dev"
"""Domain of the reasons in google.rpc.ErrorInfo."""

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]


async def abort_fields(context: Context, errors: FieldErrors) -> NoReturn:
    """Ends the call with INVALID_ARGUMENT, one BadRequest violation per field, for as many as fit into a status."""
    named: list[FieldError] = []
    room = _ROOM
    for error in errors.errors:
        room -= _room(str(error))
        if room < 0 and named:
            named.append(FieldError("(others)", f"have {len(errors.errors) - len(named)} more problems"))
            break
        named.append(error)
    violations = [
        error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.problem) for error in named
    ]
    detail = error_details_pb2.BadRequest(field_violations=violations)
    await _abort(context, code_pb2.INVALID_ARGUMENT, str(FieldErrors(named)), [detail])


async def abort_exhausted(context: Context, message: str, *, retry_after_s: float, subject: str) -> NoReturn:
    """Ends the call with RESOURCE_EXHAUSTED: when to ask again (seconds), and which bound was reached."""
    delay = Duration()
    delay.FromMilliseconds(max(0, round(retry_after_s * 1000)))
    violation = error_details_pb2.QuotaFailure.Violation(subject=subject, description=message)
    details = [error_details_pb2.RetryInfo(retry_delay=delay), error_details_pb2.QuotaFailure(violations=[violation])]
    await _abort(context, code_pb2.RESOURCE_EXHAUSTED, message, details)


async def abort_reason(
    context: Context, code: grpc.StatusCode, message: str, reason: str, facts: Mapping[str, str] | None = None
) -> NoReturn:
    """Ends the call with a status that has several meanings; `reason`, in upper case, says which, `facts` say more."""
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=facts or {})
    await _abort(context, code.value[0], message, [info])


def _room(text: str) -> int:
    """Bytes in metadata, where what is no ASCII takes three for one."""
    return len(text) if text.isascii() else 3 * len(text.encode())


async def _abort(context: Context, code: int, message: str, details: list[Message]) -> NoReturn:
    packed = []
    for detail in details:
        item = AnyMessage()
        item.Pack(detail)
        packed.append(item)
    status = rpc_status.to_status(status_pb2.Status(code=code, message=message, details=packed))
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort() does not return")


_NO_CONNECTION = "failed to connect to all addresses; last error: "
"""Begin of gRPC's own text, where a call had no connection to go out on."""


def never_sent(error: grpc.aio.AioRpcError) -> bool:
    """True if the call went out on no connection, so that no service can have begun it. That includes one that went out
    and was handed back untouched by a service that ends, which gRPC then tried to send again."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and (error.details() or "").startswith(_NO_CONNECTION)


def why_unavailable(details: str) -> str:
    """Why a service can't be reached: of gRPC's own long text the last part, such as "Connection refused". What a
    service says before it, of another one that it can't reach, stays.
    """
    before, grpcs, long = " ".join(details.split()).partition(_NO_CONNECTION)
    return before + (long.rpartition(": ")[2] if grpcs else "")


def retry_after(error: grpc.aio.AioRpcError) -> float | None:
    """Seconds after which the server wants to be asked again, or None when it did not say."""
    for info in _details(error, error_details_pb2.RetryInfo):
        return float(info.retry_delay.ToMilliseconds()) / 1000
    return None


def error_reason(error: grpc.aio.AioRpcError) -> tuple[str, dict[str, str]]:
    """Reason and facts as `abort_reason` gave them; empty when the server gave none."""
    for info in _details(error, error_details_pb2.ErrorInfo):
        if info.domain == DOMAIN:
            return info.reason, dict(info.metadata)
    return "", {}


def field_errors(error: grpc.aio.AioRpcError) -> list[FieldError]:
    """The fields that the server refused; empty when it refused none."""
    return [
        FieldError(violation.field, violation.description)
        for bad in _details(error, error_details_pb2.BadRequest)
        for violation in bad.field_violations
    ]


def _details(error: grpc.aio.AioRpcError, kind: type[D]) -> list[D]:
    """Details of one kind. Empty if they can't be read: whatever stands between here and the server may have put them
    there, and the status says enough."""
    found = []
    try:
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                status = status_pb2.Status()
                status.ParseFromString(value if isinstance(value, bytes) else value.encode())
                for detail in status.details:
                    message = kind()
                    if detail.Unpack(message):
                        found.append(message)
    except DecodeError:
        return []
    return found


def let_go(error: grpc.aio.AbortError) -> None:
    """gRPC's call keeps the error that ended it, and that its frames and so the call: this empties the frames, so that
    what was sent is freed at once, however large. The error is this call's alone; those before it may be in frames of
    others that still run, and are only left. Whoever calls it has a frame too, and lets go of the request itself."""
    traceback.clear_frames(error.__traceback__)
    error.__context__ = error.__cause__ = None
