"""Spans of calls that come in: which of them have failed."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from fairbox.net.channels import open_channel
from fairbox.net.serving import GrpcServer
from tests.executor.servers import wait_for


async def _answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    """Ends with the status that the request names."""
    if request == b"defect":
        raise RuntimeError(request)
    if request != b"OK":
        await context.abort(grpc.StatusCode[request.decode()], "as you wish")
    return request


def _add(server: grpc.aio.Server) -> None:
    methods: dict[str, Any] = {"Answer": grpc.unary_unary_rpc_method_handler(_answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("limiter.v1.Test", methods),))


@pytest.mark.parametrize(
    ("asked", "status", "failed"),
    [
        ("OK", "OK", ""),
        ("INVALID_ARGUMENT", "INVALID_ARGUMENT", ""),
        ("NOT_FOUND", "NOT_FOUND", ""),
        ("FAILED_PRECONDITION", "FAILED_PRECONDITION", ""),
        ("UNAVAILABLE", "UNAVAILABLE", "AbortError"),
        ("INTERNAL", "INTERNAL", "AbortError"),
        ("defect", "UNKNOWN", "RuntimeError"),
    ],
)
async def test_a_call_has_failed_where_the_service_did(
    asked: str, status: str, failed: str, spans: InMemorySpanExporter
) -> None:
    async with (
        GrpcServer("127.0.0.1:0", add=_add, services=[]) as server,
        open_channel(server.address) as channel,
    ):
        call: Any = channel.unary_unary("/limiter.v1.Test/Answer")
        answered = await asyncio.gather(call(asked.encode(), timeout=20), return_exceptions=True)
    await asyncio.to_thread(wait_for, spans.get_finished_spans)  # the caller has its answer a moment before
    (span,) = spans.get_finished_spans()
    assert (span.name, span.kind, span.attributes) == ("Test/Answer", SpanKind.SERVER, {"fairbox.status": status})
    assert (span.status.description or "") == failed
    assert span.status.is_unset == (not failed)
    assert not span.events  # which would hold the texts of exceptions
    (error,) = answered
    if status == "OK":
        assert error == b"OK"
    else:
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code().name == status
        assert asked == "defect" or error.details() == "as you wish"
