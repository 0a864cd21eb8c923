"""Traces calls that come in over gRPC: an interceptor that costs a call nothing unless tracing is on.

Calls that only look (health, status, reflection) and the limiter's session streams, which live as long as their
clients, are left out. What clients send is W3C trace context, in the metadata `traceparent`. OpenTelemetry's own
interceptor writes the texts of refusals and exceptions into spans, and these can hold code.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from fairbox.telemetry import tracing

_ONLY_LOOK = ("GetStatus", "ListLeases", "ListSessions", "Session")
if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

_OURS = ("limiter.v1.", "executor_service.v1.")

_STATUS = {status.value[0]: status.name for status in grpc.StatusCode}
_CALLERS = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "FAILED_PRECONDITION",
        "OUT_OF_RANGE",
        "CANCELLED",
    }
)
"""Statuses with which a service has done its job."""


def server_interceptors() -> list[grpc.aio.ServerInterceptor]:
    """Interceptors of a server that starts now: none while tracing is off."""
    return [_Traced()] if tracing.enabled() else []


class _Traced(grpc.aio.ServerInterceptor):
    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if handler is None or not service.startswith(_OURS) or method in _ONLY_LOOK:
            return handler
        metadata = dict(handler_call_details.invocation_metadata or ())
        return _with_span(handler, f"{service.rpartition('.')[2]}/{method}", str(metadata.get("traceparent", "")))


def _status(context: Any) -> str:
    """By its name. The context has a number until somebody has set it."""
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else _STATUS.get(code or 0, "OK")


def _with_span(handler: Handler, name: str, traceparent: str) -> Handler:
    """The handler with a span around it; the handlers here answer through the context where they stream."""
    behaviour: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary
    if not inspect.iscoroutinefunction(behaviour):
        return handler

    async def traced(request: Any, context: Any) -> Any:
        with tracing.call_span(name, traceparent) as span:
            try:
                response = await behaviour(request, context)
                span.set_attribute("fairbox.status", _status(context))
                return response
            except grpc.aio.AbortError as error:
                request = None  # this frame stays as long as the error
                status = _status(context)
                span.set_attribute("fairbox.status", status)
                if status not in _CALLERS:
                    raise
                refused = error  # the span ends as one that went well: its caller was told what is wrong
            except BaseException as error:  # which gRPC answers so
                cancelled = isinstance(error, asyncio.CancelledError)
                span.set_attribute("fairbox.status", "CANCELLED" if cancelled else "UNKNOWN")
                raise
        raise refused

    streams = handler.response_streaming
    make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
    return make(traced, handler.request_deserializer, handler.response_serializer)
