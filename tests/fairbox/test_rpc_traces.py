"""Spans of calls that come in: which of them have failed."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from fairbox.channels import open_channel
from fairbox.collector import collecting
from fairbox.serving import GrpcServer
from fairbox.telemetry import TelemetrySettings, open_traces


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
async def test_a_call_has_failed_where_the_service_did(asked: str, status: str, failed: str) -> None:
    with collecting() as collector:
        settings = TelemetrySettings(otlp_endpoint=collector.url)
        async with (
            open_traces(settings, service="x", instance="y"),
            GrpcServer("127.0.0.1:0", add=_add, services=[]) as server,
            open_channel(server.address) as channel,
        ):
            call: Any = channel.unary_unary("/limiter.v1.Test/Answer")
            answered = await asyncio.gather(call(asked.encode(), timeout=20), return_exceptions=True)
    (span,) = collector.spans
    assert (span.attributes["fairbox.status"], span.failed) == (status, failed)
    (error,) = answered
    if status == "OK":
        assert error == b"OK"
    else:
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code().name == status
        assert asked == "defect" or error.details() == "as you wish"
