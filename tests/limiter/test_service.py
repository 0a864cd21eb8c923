"""The gRPC surface: unary calls, raw session streams, the operators' service, health, reflection, the process."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fairbox.channels import open_channel
from fairbox.errors import ConfigError
from fairbox.grpc_errors import field_errors, retry_after
from limiter import ExecutorSession, Lease, LimiterClient, QueueFull, QueueTimeout
from limiter.client.unary import UnaryLimiterClient
from limiter.config import BucketConfig, LimiterConfig
from limiter.server import LimiterServer
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.servers import ROOT, admin_stub, limiter_server, queued, unary_stub, until


async def code_of(call: Awaitable[object]) -> grpc.StatusCode:
    """Status with which a call ends."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code()


class TestUnary:
    async def test_token_is_acquired_and_released_by_its_lease(self) -> None:
        async with limiter_server() as server, unary_stub(server) as stub:
            granted = await stub.AcquireToken(pb.AcquireTokenRequest(client_id="me", request_id="1"))
            assert (granted.client_id, granted.request_id, granted.lease.bucket) == ("me", "1", "code")
            assert granted.start_by_s == pytest.approx(60, abs=1)
            assert server.statistics().held == 1
            release = pb.ReleaseTokenRequest(lease=granted.lease)
            assert (await stub.ReleaseToken(release)).released
            assert not (await stub.ReleaseToken(release)).released
            assert server.statistics().held == 0

    async def test_token_is_released_by_the_ids_of_its_acquire(self) -> None:
        async with limiter_server() as server, unary_stub(server) as stub:
            await stub.AcquireToken(pb.AcquireTokenRequest(client_id="me", request_id="1"))
            release = pb.ReleaseTokenRequest(client_id="me", request_id="1")
            assert (await stub.ReleaseToken(release)).released
            assert not (await stub.ReleaseToken(release)).released
            assert server.statistics().held == 0

    async def test_ids_are_made_up_where_the_request_has_none(self) -> None:
        async with limiter_server() as server, unary_stub(server) as stub:
            granted = await stub.AcquireToken(pb.AcquireTokenRequest())
            release = pb.ReleaseTokenRequest(client_id=granted.client_id, request_id=granted.request_id)
            assert (await stub.ReleaseToken(release)).released

    async def test_repeated_acquire_joins_the_first_one(self) -> None:
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

    async def test_queue_timeout_is_answered_by_the_server(self) -> None:
        async with limiter_server(1) as server, unary_stub(server) as stub:
            await stub.AcquireToken(pb.AcquireTokenRequest())
            code = await code_of(stub.AcquireToken(pb.AcquireTokenRequest(queue_timeout_s=0.05), timeout=10))
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert server.statistics().queued == 0

    async def test_cancelled_call_leaves_the_queue(self) -> None:
        async with limiter_server(1) as server, unary_stub(server) as stub:
            await stub.AcquireToken(pb.AcquireTokenRequest())
            call = stub.AcquireToken(pb.AcquireTokenRequest())
            await queued(server, 1)
            call.cancel()
            await queued(server, 0)

    async def test_release_by_ids_ends_a_waiting_call(self) -> None:
        async with limiter_server(1) as server, unary_stub(server) as stub:
            await stub.AcquireToken(pb.AcquireTokenRequest())
            call = stub.AcquireToken(pb.AcquireTokenRequest(client_id="me", request_id="1"))
            await queued(server, 1)
            release = pb.ReleaseTokenRequest(client_id="me", request_id="1")
            assert (await stub.ReleaseToken(release)).released
            assert await code_of(call) is grpc.StatusCode.CANCELLED

    async def test_full_queue_carries_retry_info_and_quota_failure(self) -> None:
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

    async def test_unknown_bucket_is_not_found_and_names_the_known_ones(self) -> None:
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
    async def test_bad_fields_of_an_acquire_are_named(
        self, request_: pb.AcquireTokenRequest, fields: list[str]
    ) -> None:
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
            (pb.ReleaseTokenRequest(lease=pb.Lease(epoch=1, seq=1), client_id="me"), ["lease"]),
            (pb.ReleaseTokenRequest(lease=pb.Lease(client_session_id="x")), ["lease.epoch", "lease.seq"]),
            (pb.ReleaseTokenRequest(client_id="m", request_id="1", outcome=99), ["outcome"]),  # type: ignore[arg-type]
        ],
    )
    async def test_bad_fields_of_a_release_are_named(self, request_: pb.ReleaseTokenRequest, fields: list[str]) -> None:
        async with limiter_server() as server, unary_stub(server) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.ReleaseToken(request_)
            assert [error.field for error in field_errors(refused.value)] == fields

    async def test_batch_takes_what_is_free_or_waits_for_all(self) -> None:
        async with limiter_server(3) as server, unary_stub(server) as stub:
            partial = await stub.AcquireBatch(pb.AcquireBatchRequest(count=9, partial=True))
            assert len(partial.leases) == 3
            call = stub.AcquireBatch(pb.AcquireBatchRequest(count=2))
            await queued(server, 1)
            await stub.ReleaseToken(pb.ReleaseTokenRequest(lease=partial.leases[0]))
            await asyncio.sleep(0.02)
            assert server.statistics().queued == 1
            await stub.ReleaseToken(pb.ReleaseTokenRequest(lease=partial.leases[1]))
            assert len((await call).leases) == 2
            assert await code_of(stub.AcquireBatch(pb.AcquireBatchRequest())) is grpc.StatusCode.INVALID_ARGUMENT
            assert await code_of(stub.AcquireBatch(pb.AcquireBatchRequest(count=4))) is grpc.StatusCode.INVALID_ARGUMENT

    async def test_unary_lease_ends_by_its_ttl_unless_an_executor_binds_it(self) -> None:
        async with limiter_server(2) as server, unary_stub(server) as stub, ExecutorSession(server.address) as executor:
            request = pb.AcquireTokenRequest(client_id="me", unbound_ttl_s=0.3)
            bound = (await stub.AcquireToken(request)).lease
            await stub.AcquireToken(request)
            assert (await executor.bind(bound)).bound
            assert server.statistics().held == 2
            await until(lambda: server.statistics().held == 1)
            answer = await stub.ReleaseToken(pb.ReleaseTokenRequest(lease=bound))
            assert (answer.released, answer.bound) == (False, True)
            executor.release(bound)
            await until(lambda: server.statistics().held == 0)

    async def test_storm_of_deadlines_leaves_nothing_held_and_nothing_queued(self) -> None:
        """Deadlines of calls race with grants; the release that follows an error finds what nobody was handed."""
        async with limiter_server(4) as server, unary_stub(server) as stub:
            chosen = random.Random(2)
            granted = failed = 0

            async def one(number: int) -> None:
                nonlocal granted, failed
                request = pb.AcquireTokenRequest(client_id="storm", request_id=str(number))
                try:
                    await stub.AcquireToken(request, timeout=chosen.expovariate(1 / 0.05))
                    await asyncio.sleep(chosen.uniform(0, 0.002))
                    granted += 1
                except grpc.aio.AioRpcError:
                    failed += 1
                await stub.ReleaseToken(pb.ReleaseTokenRequest(client_id="storm", request_id=str(number)))

            for start in range(0, 800, 80):
                await asyncio.gather(*(one(number) for number in range(start, start + 80)))
            assert granted > 50
            assert failed > 50
            await until(lambda: (server.statistics().held, server.statistics().queued) == (0, 0), within=2.0)

    async def test_unary_client_gives_back_what_a_cancelled_task_was_granted(self) -> None:
        async with limiter_server(1, max_queued=1) as server, UnaryLimiterClient(server.address) as client:
            async with client.lease() as lease:
                assert (lease.bucket, server.statistics().held) == ("code", 1)
                with pytest.raises(QueueTimeout):
                    await client.lease(queue_timeout=0.05).__aenter__()
                waiter = asyncio.create_task(client.lease().__aenter__())
                await queued(server, 1)
                with pytest.raises(QueueFull):
                    await client.lease().__aenter__()
                waiter.cancel()
                await queued(server, 0)
            assert server.statistics().held == 0

    async def test_shutdown_answers_waiting_calls(self) -> None:
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


Stream = grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]


@asynccontextmanager
async def raw_session(server: LimiterServer, hello: pb.Hello | None) -> AsyncIterator[Stream]:
    """A session stream of generated messages."""
    async with unary_stub(server) as stub:
        stream: Stream = stub.Session()
        if hello is not None:
            await stream.write(pb.SessionRequest(hello=hello))
        yield stream
        stream.cancel()


def hello(session_id: str = "raw", kind: pb.SessionKind.ValueType = pb.SESSION_KIND_CLIENT) -> pb.Hello:
    return pb.Hello(session_id=session_id, kind=kind)


async def read(stream: Stream) -> pb.SessionResponse:
    async with asyncio.timeout(5):
        frame = await stream.read()
    assert isinstance(frame, pb.SessionResponse), await stream.details()
    return frame


async def refusal(stream: Stream) -> tuple[grpc.StatusCode, str]:
    """Status and sentence with which the server ends a stream; frames before that are skipped."""
    async with asyncio.timeout(5):
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await stream.read() is not grpc.aio.EOF:
                continue
        return await stream.code(), await stream.details()


class TestSession:
    async def test_welcome_is_the_first_frame_and_many_requests_share_one(self) -> None:
        async with limiter_server(2) as server, raw_session(server, hello()) as stream:
            first = await read(stream)
            assert first.HasField("welcome")
            assert (first.welcome.ttl_s, first.welcome.grace_s, first.welcome.resumed) == (6.0, 1.5, False)
            acquires = [pb.Acquire(request_id=str(number)) for number in range(5)]
            await stream.write(pb.SessionRequest(acquires=acquires))
            frame = await read(stream)
            assert [grant.request_id for grant in frame.grants] == ["0", "1"]
            assert [(each.request_id, each.position) for each in frame.queued] == [("2", 0), ("3", 1), ("4", 2)]
            releases = [pb.Release(lease=grant.lease) for grant in frame.grants]
            await stream.write(pb.SessionRequest(releases=releases))
            assert [grant.request_id for grant in (await read(stream)).grants] == ["2", "3"]

    async def test_bind_is_idempotent(self) -> None:
        executor = hello("executor", pb.SESSION_KIND_EXECUTOR)
        async with (
            limiter_server() as server,
            LimiterClient(server.address) as client,
            client.lease() as lease,
            raw_session(server, executor) as stream,
        ):
            await read(stream)
            bind = pb.Bind(lease=_message(lease), run_id="run-1")
            await stream.write(pb.SessionRequest(binds=[bind, bind], heartbeat=7))
            frame = await read(stream)
            assert [result.status for result in frame.bind_results] == [pb.BIND_STATUS_BOUND] * 2
            assert frame.heartbeat_ack == 7
            assert server.statistics().bound == 1

    async def test_bad_request_is_rejected_alone(self) -> None:
        async with limiter_server() as server, raw_session(server, hello()) as stream:
            await read(stream)
            bad = [
                pb.Acquire(request_id="a b"),
                pb.Acquire(request_id="t", queue_timeout_s=float("nan")),
                pb.Acquire(request_id="p", parent=pb.Lease(seq=1)),
                pb.Acquire(request_id="b", bucket="gpu"),
                pb.Acquire(request_id="good"),
            ]
            await stream.write(pb.SessionRequest(acquires=bad))
            frame = await read(stream)
            assert [reject.message.split()[0] for reject in frame.rejects] == [
                "request_id",
                "queue_timeout_s",
                "parent",
                "bucket",
            ]
            assert [grant.request_id for grant in frame.grants] == ["good"]

    @pytest.mark.parametrize(
        ("frame", "field"),
        [
            (pb.SessionRequest(heartbeat=1), "hello"),
            (pb.SessionRequest(hello=pb.Hello(kind=pb.SESSION_KIND_CLIENT)), "hello.session_id"),
            (pb.SessionRequest(hello=pb.Hello(session_id="x")), "hello.kind"),
            (pb.SessionRequest(hello=hello("unary:me")), "hello.session_id"),
            (pb.SessionRequest(hello=hello(), binds=[pb.Bind()]), "binds"),
        ],
    )
    async def test_stream_that_breaks_the_protocol_ends_with_the_field(
        self, frame: pb.SessionRequest, field: str
    ) -> None:
        async with limiter_server() as server, raw_session(server, None) as stream:
            await stream.write(frame)
            code, sentence = await refusal(stream)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert sentence.startswith(f"{field} ")
            await until(lambda: server.statistics().held == 0)

    async def test_second_hello_is_refused(self) -> None:
        async with limiter_server() as server, raw_session(server, hello()) as stream:
            await read(stream)
            await stream.write(pb.SessionRequest(hello=hello()))
            assert (await refusal(stream))[0] is grpc.StatusCode.INVALID_ARGUMENT

    async def test_newer_stream_replaces_the_older_one_of_its_session(self) -> None:
        async with limiter_server() as server, raw_session(server, hello()) as old:
            await read(old)
            async with raw_session(server, hello()) as new:
                assert (await read(new)).welcome.resumed
                assert (await read(old)).go_away.reason == "another stream has resumed this session"
                assert (await refusal(old))[0] is grpc.StatusCode.OK
                await new.write(pb.SessionRequest(acquires=[pb.Acquire(request_id="1")]))
                assert (await read(new)).grants[0].request_id == "1"

    async def test_hello_of_another_kind_is_sent_away_and_harms_nobody(self) -> None:
        async with limiter_server() as server, raw_session(server, hello()) as stream:
            await read(stream)
            async with raw_session(server, hello(kind=pb.SESSION_KIND_EXECUTOR)) as impostor:
                assert "another kind" in (await read(impostor)).go_away.reason
            await stream.write(pb.SessionRequest(acquires=[pb.Acquire(request_id="1")]))
            assert (await read(stream)).grants[0].request_id == "1"

    async def test_silent_executor_is_sent_away(self) -> None:
        executor = hello("executor", pb.SESSION_KIND_EXECUTOR)
        async with limiter_server(executor_ttl_s=0.3) as server, raw_session(server, executor) as stream:
            assert (await read(stream)).HasField("welcome")
            assert (await read(stream)).go_away.reason == "it was silent for too long"
            assert server.statistics().executors == 0


def _message(lease: Lease) -> pb.Lease:
    return pb.Lease(bucket=lease.bucket, epoch=lease.epoch, seq=lease.seq, client_session_id=lease.client_session_id)


async def _first(watch: AsyncIterable[pb.WatchStatusResponse], count: int) -> AsyncIterator[pb.WatchStatusResponse]:
    async for frame in watch:
        yield frame
        count -= 1
        if not count:
            return


class TestAdmin:
    async def test_status_shows_buckets_and_sessions(self) -> None:
        async with (
            limiter_server(2) as server,
            admin_stub(server) as admin,
            LimiterClient(server.address, name="rollout-0") as client,
            client.lease(),
        ):
            status = await admin.GetStatus(pb.GetStatusRequest())
            assert (status.leader, status.epoch > 0, len(status.buckets)) == (True, True, 1)
            bucket = status.buckets[0]
            assert (bucket.config.name, bucket.config.max_in_flight, bucket.held, bucket.bound) == ("code", 2, 1, 0)
            assert [(each.name, each.connected, each.held) for each in status.sessions] == [("rollout-0", True, 1)]
            assert await code_of(admin.GetStatus(pb.GetStatusRequest(bucket="gpu"))) is grpc.StatusCode.NOT_FOUND

    async def test_watch_repeats_the_status(self) -> None:
        async with limiter_server() as server, admin_stub(server) as admin:
            watch = admin.WatchStatus(pb.WatchStatusRequest(interval_s=0.1))
            frames = [frame async for frame in _first(watch, 3)]
            uptimes = [frame.status.uptime_s for frame in frames]
            assert uptimes == sorted(set(uptimes))
            watch.cancel()

    async def test_leases_and_queue_are_listed_in_pages(self) -> None:
        async with (
            limiter_server(3) as server,
            admin_stub(server) as admin,
            LimiterClient(server.address) as client,
            ExecutorSession(server.address, executor_id="e") as executor,
            client.lease() as bound,
            client.lease(),
            client.lease(),
        ):
            await executor.bind(bound, run_id="run-1")
            waiters = [asyncio.create_task(client.lease(request_id=f"w{number}").__aenter__()) for number in range(3)]
            await queued(server, 3)
            leases = await admin.ListLeases(pb.ListLeasesRequest(page_size=2))
            first = leases.leases[0]
            assert (first.state, first.holder_name, first.run_id) == (pb.LEASE_STATE_BOUND, "e", "run-1")
            rest = await admin.ListLeases(pb.ListLeasesRequest(page_size=2, page_token=leases.next_page_token))
            assert [len(leases.leases), len(rest.leases), rest.next_page_token] == [2, 1, ""]
            page = await admin.ListQueue(pb.ListQueueRequest(page_size=2))
            rest_of_queue = await admin.ListQueue(pb.ListQueueRequest(page_token=page.next_page_token))
            names = [entry.request_id for entry in [*page.entries, *rest_of_queue.entries]]
            assert names == ["w0", "w1", "w2"]
            assert await code_of(admin.ListQueue(pb.ListQueueRequest(page_token="x"))) is (
                grpc.StatusCode.INVALID_ARGUMENT
            )
            assert await code_of(admin.ListQueue(pb.ListQueueRequest(page_size=1001))) is (
                grpc.StatusCode.INVALID_ARGUMENT
            )
            assert await code_of(admin.ListQueue(pb.ListQueueRequest(bucket="gpu"))) is grpc.StatusCode.NOT_FOUND
            for waiter in waiters:
                waiter.cancel()

    async def test_revoke_ends_a_granted_lease_and_spares_a_bound_one_without_force(self) -> None:
        async with (
            limiter_server(2) as server,
            admin_stub(server) as admin,
            LimiterClient(server.address) as client,
            ExecutorSession(server.address) as executor,
            client.lease() as bound,
            client.lease() as loose,
        ):
            await executor.bind(bound)
            lost = asyncio.Event()
            executor.when_lost(bound, lost.set)
            answer = await admin.RevokeLease(pb.RevokeLeaseRequest(lease=_message(loose)))
            assert answer.state == pb.LEASE_STATE_UNSPECIFIED
            spared = admin.RevokeLease(pb.RevokeLeaseRequest(lease=_message(bound)))
            assert await code_of(spared) is grpc.StatusCode.FAILED_PRECONDITION
            answer = await admin.RevokeLease(pb.RevokeLeaseRequest(lease=_message(bound), force=True))
            assert answer.state == pb.LEASE_STATE_REVOKING
            await asyncio.wait_for(lost.wait(), 5)
            unknown = admin.RevokeLease(pb.RevokeLeaseRequest(lease=_message(loose)))
            assert await code_of(unknown) is grpc.StatusCode.NOT_FOUND

    async def test_configuring_a_bucket_is_not_built_yet_and_says_so(self) -> None:
        async with limiter_server() as server, admin_stub(server) as admin:
            assert await code_of(admin.ConfigureBucket(pb.ConfigureBucketRequest())) is grpc.StatusCode.UNIMPLEMENTED


class TestProcess:
    async def test_health_and_reflection_answer(self) -> None:
        async with limiter_server() as server:
            async with open_channel(server.health_address) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                for service in ("", "liveness", "readiness"):
                    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
                    assert answer.status == health_pb2.HealthCheckResponse.SERVING
            for address, name in (
                (server.address, "limiter.v1.LimiterService"),
                (server.admin_address, "limiter.v1.LimiterAdminService"),
            ):
                assert name in await _listed(address)

    def test_grpcurl_acquires_and_releases(self, started: str) -> None:
        grpcurl = Path(sys.executable).with_name("grpcurl")
        if not grpcurl.exists():
            pytest.skip("grpcurl is not installed beside this Python")

        def call(method: str, body: str) -> str:
            command = [str(grpcurl), "-plaintext", "-d", body, started, f"limiter.v1.LimiterService/{method}"]
            return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout

        assert '"bucket": "code"' in call("AcquireToken", '{"client_id": "me", "request_id": "1"}')
        assert '"released": true' in call("ReleaseToken", '{"client_id": "me", "request_id": "1"}')

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
    def test_signal_ends_it_cleanly(self, number: signal.Signals, code: int) -> None:
        with _process() as process:
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
            assert process.returncode == code
            assert "Traceback" not in errors

    def test_busy_port_ends_in_one_sentence(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            command = [sys.executable, "-m", "limiter", f"listen=127.0.0.1:{port}", *_FREE[1:]]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert done.stderr == f"limiter: listen: can't listen on 127.0.0.1:{port}: Address already in use\n"

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["buckets.code.max_in_fligth=4"], "did you mean"),
            (["listen=0.0.0.0:0"], "not loopback"),
            (["grace_s=-1"], "grace_s is -1.0, must be from 0.0 to 3600.0"),
        ],
    )
    def test_bad_setting_ends_in_one_sentence(self, arguments: list[str], sentence: str) -> None:
        command = [sys.executable, "-m", "limiter", *_FREE, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1

    def test_configuration_is_checked_by_path(self) -> None:
        with pytest.raises(ConfigError, match=r"buckets\.code\.max_in_flight is 0, must be from 1"):
            LimiterConfig(buckets={"code": BucketConfig(max_in_flight=0)}).validate()
        with pytest.raises(ConfigError, match=r"buckets\.a b: a name is"):
            LimiterConfig(buckets={"a b": BucketConfig()}).validate()

    @pytest.fixture
    def started(self) -> object:
        """Address of a limiter in a process of its own."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with _process(f"listen=127.0.0.1:{port}"):
            yield f"127.0.0.1:{port}"


_FREE = ["listen=127.0.0.1:0", "admin_listen=127.0.0.1:0", "health_listen=127.0.0.1:0"]


class _process:  # noqa: N801 - a context manager
    """`python -m limiter`, listening; killed at the end."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "limiter", *_FREE, *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> subprocess.Popen[str]:
        assert self._process.stderr is not None
        assert "listening on" in self._process.stderr.readline()
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


async def _listed(address: str) -> list[str]:
    """Names that a server's reflection lists."""
    async with open_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        call.cancel()
        return [service.name for service in answer.list_services_response.service]
