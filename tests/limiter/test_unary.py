"""The unary calls over real gRPC: grants, releases, joined calls, timeouts, bad fields, storms."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from fairbox.net.grpc_errors import field_errors, retry_after
from fairbox.v1 import common_pb2
from limiter import ExecutorSession, LimiterClient
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.servers import ROOT, code_of, lease_message, limiter_server, queued, unary_stub, until


async def test_token_is_acquired_and_released_by_its_lease() -> None:
    async with limiter_server() as server, unary_stub(server) as stub:
        granted = await stub.AcquireToken(pb.AcquireTokenRequest(client_id="me", request_id="1"))
        assert (granted.client_id, granted.request_id, granted.lease.bucket) == ("me", "1", "code")
        assert granted.start_by_s == pytest.approx(60, abs=1)
        assert server.statistics().held == 1
        release = pb.ReleaseTokenRequest(lease=granted.lease)
        assert (await stub.ReleaseToken(release)).released
        assert not (await stub.ReleaseToken(release)).released
        assert server.statistics().held == 0


async def test_ids_are_made_up_where_the_request_has_none() -> None:
    async with limiter_server() as server, unary_stub(server) as stub:
        granted = await stub.AcquireToken(pb.AcquireTokenRequest())
        release = pb.ReleaseTokenRequest(client_id=granted.client_id, request_id=granted.request_id)
        assert (await stub.ReleaseToken(release)).released


async def test_repeated_acquire_joins_the_first_one() -> None:
    async with limiter_server(1) as server, unary_stub(server) as stub, LimiterClient(server.address) as client:
        request = pb.AcquireTokenRequest(client_id="me", request_id="1")
        async with client.lease():
            calls = [stub.AcquireToken(request) for _ in range(3)]
            await queued(server, 1)
            await asyncio.sleep(0.05)
            assert server.statistics().queued == 1
        answers = await asyncio.gather(*calls)
        assert {answer.lease.seq for answer in answers} == {2}
        assert (await stub.AcquireToken(request)).lease.seq == 2
        assert server.statistics().held == 1


async def test_queue_timeout_is_answered_by_the_server() -> None:
    async with limiter_server(1) as server, unary_stub(server) as stub:
        await stub.AcquireToken(pb.AcquireTokenRequest())
        code = await code_of(stub.AcquireToken(pb.AcquireTokenRequest(queue_timeout_s=0.05), timeout=10))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert server.statistics().queued == 0


async def test_cancelled_call_leaves_the_queue() -> None:
    async with limiter_server(1) as server, unary_stub(server) as stub:
        await stub.AcquireToken(pb.AcquireTokenRequest())
        call = stub.AcquireToken(pb.AcquireTokenRequest())
        await queued(server, 1)
        call.cancel()
        await queued(server, 0)


async def test_release_by_ids_ends_a_waiting_call() -> None:
    async with limiter_server(1) as server, unary_stub(server) as stub:
        await stub.AcquireToken(pb.AcquireTokenRequest())
        call = stub.AcquireToken(pb.AcquireTokenRequest(client_id="me", request_id="1"))
        await queued(server, 1)
        release = pb.ReleaseTokenRequest(client_id="me", request_id="1")
        assert (await stub.ReleaseToken(release)).released
        assert await code_of(call) is grpc.StatusCode.CANCELLED


async def test_full_queue_carries_retry_info_and_quota_failure() -> None:
    async with limiter_server(1, max_queued=1) as server, unary_stub(server) as stub:
        await stub.AcquireToken(pb.AcquireTokenRequest())
        waiting = stub.AcquireToken(pb.AcquireTokenRequest())
        await queued(server, 1)
        with pytest.raises(grpc.aio.AioRpcError) as full:
            await stub.AcquireToken(pb.AcquireTokenRequest())
        assert full.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (retry_after(full.value) or 0) > 0
        assert _quota_subjects(full.value) == ["bucket:code"]
        waiting.cancel()


async def test_unknown_bucket_is_not_found_and_names_the_known_ones() -> None:
    async with limiter_server() as server, unary_stub(server) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.AcquireToken(pb.AcquireTokenRequest(bucket="gpu"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        assert unknown.value.details() == "bucket is 'gpu', must be one of code"


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (pb.AcquireTokenRequest(client_id="a b"), ["client_id"]),
        (pb.AcquireTokenRequest(client_id="x" * 123, request_id="\n"), ["client_id", "request_id"]),
        (pb.AcquireTokenRequest(queue_timeout_s=-1, unbound_ttl_s=4000), ["queue_timeout_s", "unbound_ttl_s"]),
        (pb.AcquireTokenRequest(queue_timeout_s=float("nan")), ["queue_timeout_s"]),
        (pb.AcquireTokenRequest(unbound_ttl_s=float("inf")), ["unbound_ttl_s"]),
        (pb.AcquireTokenRequest(tokens=1_000_001), ["tokens"]),
        (pb.AcquireTokenRequest(tokens=3), ["tokens"]),
        (pb.AcquireTokenRequest(tenant="t" * 129), ["tenant"]),
    ],
)
async def test_bad_fields_of_an_acquire_are_named(request_: pb.AcquireTokenRequest, fields: list[str]) -> None:
    async with limiter_server(2) as server, unary_stub(server) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.AcquireToken(request_)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert [error.field for error in field_errors(refused.value)] == fields
        assert server.statistics().sessions == 0


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (pb.ReleaseTokenRequest(), ["client_id", "request_id"]),
        (pb.ReleaseTokenRequest(client_id="me"), ["request_id"]),
        (pb.ReleaseTokenRequest(lease=common_pb2.Lease(epoch=1, seq=1), client_id="me"), ["lease"]),
        (pb.ReleaseTokenRequest(lease=common_pb2.Lease(client_session_id="x")), ["lease.epoch", "lease.seq"]),
        (pb.ReleaseTokenRequest(client_id="m", request_id="1", outcome=99), ["outcome"]),  # type: ignore[arg-type]
    ],
)
async def test_bad_fields_of_a_release_are_named(request_: pb.ReleaseTokenRequest, fields: list[str]) -> None:
    async with limiter_server() as server, unary_stub(server) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReleaseToken(request_)
        assert [error.field for error in field_errors(refused.value)] == fields


async def test_unary_lease_ends_by_its_ttl_unless_an_executor_binds_it() -> None:
    async with limiter_server(2) as server, unary_stub(server) as stub, ExecutorSession(server.address) as executor:
        await until(lambda: executor.connected)
        request = pb.AcquireTokenRequest(client_id="me", unbound_ttl_s=1.0)
        bound = (await stub.AcquireToken(request)).lease
        assert (await executor.bind(bound)).bound
        await stub.AcquireToken(request)
        await until(lambda: server.statistics().bucket().revoked_total == 1)
        assert (server.statistics().held, server.statistics().bucket().granted_total) == (1, 2)
        answer = await stub.ReleaseToken(pb.ReleaseTokenRequest(lease=bound))
        assert (answer.released, answer.bound) == (False, True)
        executor.release(bound)
        await until(lambda: server.statistics().held == 0)


async def test_unary_release_does_not_free_what_an_executor_acquired_for_itself() -> None:
    async with (
        limiter_server() as server,
        unary_stub(server) as stub,
        ExecutorSession(server.address) as executor,
        executor.acquire() as lease,
    ):
        answer = await stub.ReleaseToken(pb.ReleaseTokenRequest(lease=lease_message(lease)))
        assert (answer.released, answer.bound) == (False, True)
        assert server.statistics().bound == 1


async def test_shutdown_answers_waiting_calls() -> None:
    async with limiter_server(1) as server, unary_stub(server) as stub:
        await stub.AcquireToken(pb.AcquireTokenRequest())
        call = stub.AcquireToken(pb.AcquireTokenRequest())
        await queued(server, 1)
        await server.stop()
        assert await code_of(call) is grpc.StatusCode.UNAVAILABLE


def _quota_subjects(error: grpc.aio.AioRpcError) -> list[str]:
    trailer = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    assert isinstance(trailer, bytes)
    status = status_pb2.Status()
    status.ParseFromString(trailer)
    found = error_details_pb2.QuotaFailure()
    for detail in status.details:
        detail.Unpack(found)
    return [violation.subject for violation in found.violations]


async def test_the_example_takes_and_returns_a_token() -> None:
    async with limiter_server(1) as server:
        words = [sys.executable, "-m", "examples.unary_limiter", server.address]
        done = await asyncio.to_thread(subprocess.run, words, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith("granted code "), done.stderr
        assert server.statistics().held == 0
