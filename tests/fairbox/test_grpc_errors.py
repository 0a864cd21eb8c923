"""Details of typed errors survive the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fairbox.errors import FieldError, FieldErrors
from fairbox.net.channels import open_channel
from fairbox.net.grpc_errors import (
    abort_exhausted,
    abort_fields,
    error_reason,
    field_errors,
    never_sent,
    retry_after,
    why_unavailable,
)
from fairbox.net.serving import GrpcServer

FIELDS = [FieldError("limits.wall_time_s", "is -1, must be positive"), FieldError("code", "is empty")]


class Refusing(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    async def Check(self, request: Any, context: Any) -> Any:
        if request.service == "fields":
            await abort_fields(context, FieldErrors(FIELDS))
        if request.service == "junk":
            context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff junk"),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "a proxy's own")
        await abort_exhausted(context, "the queue is full", retry_after_s=1.5, subject="bucket:code")


@pytest.fixture
async def stub() -> AsyncIterator[Any]:
    def add(server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(Refusing(), server)

    async with (
        GrpcServer("127.0.0.1:0", add=add, services=[]) as server,
        open_channel(server.address) as channel,
    ):
        yield health_pb2_grpc.HealthStub(channel)


async def test_bad_fields_are_listed_one_by_one(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(service="fields"), timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "limits.wall_time_s is -1, must be positive; code is empty"
    assert field_errors(caught.value) == FIELDS
    assert retry_after(caught.value) is None


async def test_what_is_no_message_is_refused(stub: Any, caplog: pytest.LogCaptureFixture) -> None:
    """gRPC itself answers UNKNOWN, with a traceback in the log."""
    call: Any = stub.Check
    call._request_serializer = bytes
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\xff" * 20, timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records


async def test_a_full_queue_says_when_to_come_back(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert retry_after(caught.value) == 1.5
    assert field_errors(caught.value) == []


async def test_details_that_nobody_can_read_are_none(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(service="junk"), timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert retry_after(caught.value) is None
    assert field_errors(caught.value) == []
    assert error_reason(caught.value) == ("", {})


FAILED = "failed to connect to all addresses; last error"


@pytest.mark.parametrize(
    ("details", "why"),
    [
        (
            f"{FAILED}: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused",
            "Connection refused",
        ),
        (
            f"limiter a:1 is not available: {FAILED}: UNAVAILABLE: ipv4:1.2.3.4:1: connection attempt timed out before "
            "receiving SETTINGS frame",
            "limiter a:1 is not available: connection attempt timed out before receiving SETTINGS frame",
        ),
        ("this executor is ending: it says\n so", "this executor is ending: it says so"),
    ],
)
def test_of_a_connection_that_fails_the_reason_is_told_and_who_said_it(details: str, why: str) -> None:
    assert why_unavailable(details) == why


@pytest.mark.parametrize(
    ("code", "details", "unsent"),
    [
        (grpc.StatusCode.UNAVAILABLE, f"{FAILED}: UNKNOWN: ipv4:127.0.0.1:1: Connection refused", True),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", False),
        (grpc.StatusCode.UNAVAILABLE, f"limiter a:1 is not available: {FAILED}: Connection refused", False),
        (grpc.StatusCode.INTERNAL, f"{FAILED}: Connection refused", False),
        (grpc.StatusCode.UNAVAILABLE, None, False),
    ],
)
def test_a_call_was_never_sent_only_if_grpc_itself_had_no_connection(
    code: grpc.StatusCode, details: str | None, unsent: bool
) -> None:
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)
    assert never_sent(error) is unsent
