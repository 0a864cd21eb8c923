"""With a real limiter: nothing runs without a bound lease, and every token comes back when the program is dead."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import pytest
from grpc_health.v1 import health_pb2

from executor_service import Cause, ExecutorClient, ExecutorUnavailable, LeaseRefused, Limits, Outcome, Overloaded
from fairbox.net.ports import free_port
from limiter import Lease, LimiterClient
from limiter.v1 import limiter_pb2, limiter_pb2_grpc
from tests.executor.servers import (
    ROOT,
    START_WITHIN_S,
    Server,
    command,
    held,
    let_go,
    marked,
    processes_with,
    running,
    wait_for,
)

LIMIT = 2
SLEEP = "import time; print('started', flush=True); time.sleep(600)"


@dataclass(frozen=True)
class Limiter:
    """A running limiter."""

    process: subprocess.Popen[str]
    target: str
    admin: str

    def bucket(self) -> limiter_pb2.BucketStatus:
        with grpc.insecure_channel(self.admin) as channel:
            stub = limiter_pb2_grpc.LimiterAdminServiceStub(channel)
            return stub.GetStatus(limiter_pb2.GetStatusRequest(), timeout=10).buckets[0]

    def idle(self) -> bool:
        bucket = self.bucket()
        return bucket.held == bucket.queued == 0


@contextmanager
def limiter_running(*settings: str) -> Iterator[Limiter]:
    target, admin, health = (f"127.0.0.1:{free_port()}" for _ in range(3))
    words = [
        "fresh=true",
        f"listen={target}",
        f"admin_listen={admin}",
        f"health_listen={health}",
        "metrics_listen=",
        *settings,
    ]
    process = subprocess.Popen([sys.executable, "-m", "limiter", *words], cwd=ROOT, text=True)
    limiter = Limiter(process, target, admin)
    try:
        wait_for(lambda: Server(process, target, health).readiness() == 1 or process.poll() is not None, START_WITHIN_S)
        assert process.poll() is None
        yield limiter
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def limiter() -> Iterator[Limiter]:
    """A limiter with two tokens."""
    with limiter_running(f"buckets.code.max_in_flight={LIMIT}", "buckets.code.max_queued=20") as started:
        yield started


@pytest.fixture(scope="module")
def server(limiter: Limiter) -> Iterator[Server]:
    """An executor with more slots than the limiter has tokens."""
    with running(f"limiter={limiter.target}", "max_concurrent=8", "name=executor-a") as started:
        wait_for(lambda: started.status().limiter.valid)
        yield started


@pytest.fixture(autouse=True)
def _nothing_leaks(limiter: Limiter, server: Server) -> Iterator[None]:
    yield
    wait_for(limiter.idle)
    wait_for(lambda: server.status().running == server.status().queued == server.status().limiter.bound == 0)


async def test_a_program_runs_under_the_lease_of_its_request(
    executor: ExecutorClient, limiter: Limiter, server: Server
) -> None:
    marker, code = held()
    async with LimiterClient(limiter.target) as client, client.lease(bucket="code") as lease:
        call = asyncio.create_task(executor.execute(code, lease=lease))
        await asyncio.to_thread(wait_for, lambda: processes_with(marker))
        assert limiter.bucket().bound == 1
        assert server.status().limiter.bound == 1
        await asyncio.to_thread(let_go, marker)
        assert (await call).stdout.data == b"begun\ndone\n"
        await asyncio.to_thread(wait_for, limiter.idle)  # the executor gave it back, with its client still there


async def test_a_request_without_a_lease_waits_its_turn_at_the_limiter(
    executor: ExecutorClient, limiter: Limiter
) -> None:
    code = "import time; print(time.monotonic()); time.sleep(0.3); print(time.monotonic())"
    async with LimiterClient(limiter.target) as client, client.lease(bucket="code", tokens=LIMIT):
        calls = [asyncio.create_task(executor.execute(code)) for _ in range(8)]
        await asyncio.to_thread(wait_for, lambda: limiter.bucket().queued == 8)
    results = await asyncio.gather(*calls)
    spans = sorted(tuple(map(float, result.stdout.data.split())) for result in results)
    for begin, _ in spans:
        assert sum(other <= begin < end for other, end in spans) <= LIMIT
    assert max(result.queue_time_s for result in results) > 0.5


async def test_commands_beside_a_shell_hold_tokens_while_they_run_and_what_they_leave_holds_none(
    executor: ExecutorClient, limiter: Limiter
) -> None:
    async with executor.session(language="bash") as shell:
        runs = (shell.run("echo $EPOCHREALTIME; sleep 0.3; echo $EPOCHREALTIME", beside=True) for _ in range(6))
        results = await asyncio.gather(*runs)
        spans = sorted(tuple(map(float, result.stdout.data.split())) for result in results)
        for begin, _ in spans:
            assert sum(other <= begin < end for other, end in spans) <= LIMIT
        async with LimiterClient(limiter.target) as client, client.lease(bucket="code") as lease:
            leaves = "sleep 600 & until [ -e go ]; do sleep 0.05; done"
            running = asyncio.create_task(shell.run(leaves, beside=True, lease=lease))
            await asyncio.to_thread(wait_for, lambda: limiter.bucket().bound == 1)
            await shell.run("touch go")
            assert (await running).outcome is Outcome.FINISHED
            await asyncio.to_thread(wait_for, limiter.idle)


async def test_a_lease_that_was_released_is_refused(executor: ExecutorClient, limiter: Limiter) -> None:
    async with LimiterClient(limiter.target) as client:
        async with client.lease(bucket="code") as lease:
            pass
        await asyncio.to_thread(wait_for, limiter.idle)  # the release is on its way when the block is left
        with pytest.raises(
            LeaseRefused, match="was released, has expired, was revoked, or was never granted"
        ) as caught:
            await executor.execute("1", lease=lease)
        assert caught.value.cause is Cause.INFRA


async def test_a_lease_of_another_client_is_refused(executor: ExecutorClient, limiter: Limiter) -> None:
    async with LimiterClient(limiter.target) as client, client.lease(bucket="code") as lease:
        stolen = Lease(lease.bucket, lease.epoch, lease.seq, "somebody-else")
        with pytest.raises(LeaseRefused, match="another client session"):
            await executor.execute("1", lease=stolen)


async def test_a_lease_bound_by_another_executor_is_refused_with_its_owner(
    executor: ExecutorClient, limiter: Limiter
) -> None:
    marker, args = marked()
    with running(f"limiter={limiter.target}", "name=executor-b") as other:
        async with ExecutorClient(other.target) as second, LimiterClient(limiter.target) as client:
            async with client.lease(bucket="code") as lease:
                call = asyncio.create_task(executor.execute(SLEEP, args=args, lease=lease))
                await asyncio.to_thread(wait_for, lambda: processes_with(marker))
                with pytest.raises(LeaseRefused, match="executor-a"):
                    await second.execute("1", lease=lease)
                call.cancel()
            await asyncio.to_thread(wait_for, lambda: not processes_with(marker))


async def test_a_refused_request_id_is_free_again(executor: ExecutorClient, limiter: Limiter) -> None:
    async with LimiterClient(limiter.target) as client:
        async with client.lease(bucket="code") as lease:
            pass
        await asyncio.to_thread(wait_for, limiter.idle)  # the release is on its way when the block is left
        with pytest.raises(LeaseRefused):
            await executor.execute("print(1)", lease=lease, request_id="refused-1")
        async with client.lease(bucket="code") as fresh:
            result = await executor.execute("print(1)", lease=fresh, request_id="refused-1")
        assert (result.stdout.data, result.deduplicated) == (b"1\n", False)


async def test_a_repeated_request_needs_no_lease(executor: ExecutorClient, limiter: Limiter) -> None:
    async with LimiterClient(limiter.target) as client, client.lease(bucket="code") as lease:
        first = await executor.execute("print(1)", lease=lease, request_id="leased-1")
        again = await executor.execute("print(1)", lease=lease, request_id="leased-1")
    assert (first.deduplicated, again.deduplicated) == (False, True)


async def test_cancelling_gives_the_token_back_when_the_program_is_dead(
    executor: ExecutorClient, limiter: Limiter
) -> None:
    marker, args = marked()
    async with LimiterClient(limiter.target) as client, client.lease(bucket="code") as lease:
        call = asyncio.create_task(executor.execute(SLEEP, args=args, lease=lease))
        await asyncio.to_thread(wait_for, lambda: processes_with(marker))
        call.cancel()
        await asyncio.to_thread(wait_for, limiter.idle)
        assert not processes_with(marker)


async def test_a_waiting_request_that_is_cancelled_leaves_the_limiters_queue(
    executor: ExecutorClient, limiter: Limiter, server: Server
) -> None:
    async with LimiterClient(limiter.target) as client, client.lease(bucket="code", tokens=LIMIT):
        calls = [asyncio.create_task(executor.execute("1")) for _ in range(5)]
        await asyncio.to_thread(wait_for, lambda: limiter.bucket().queued == 5)
        assert server.status().queued == 5
        for call in calls:
            call.cancel()
        await asyncio.to_thread(wait_for, lambda: limiter.bucket().queued == 0 and server.status().queued == 0)


async def test_the_limiters_full_queue_says_when_to_come_back(executor: ExecutorClient, limiter: Limiter) -> None:
    async with LimiterClient(limiter.target) as client, client.lease(bucket="code", tokens=LIMIT):
        calls = [asyncio.create_task(executor.execute("1")) for _ in range(20)]
        await asyncio.to_thread(wait_for, lambda: limiter.bucket().queued == 20)
        with pytest.raises(Overloaded) as caught:
            await executor.execute("1")
        assert caught.value.retry_after_s > 0
        for call in calls:
            call.cancel()


async def test_an_executor_that_has_no_room_lowers_an_adaptive_limit() -> None:
    """The holder of the lease reports it: the executor for a turn that did not come, its caller for a full queue."""
    adaptive = ("buckets.code.max_in_flight=8", "buckets.code.adaptive=true")
    small = ("max_concurrent=1", "max_queued=1", "queue_timeout_s=3")
    with limiter_running(*adaptive) as own, running(f"limiter={own.target}", *small) as server:
        async with ExecutorClient(server.target) as executor, LimiterClient(own.target) as client:
            runs = asyncio.create_task(executor.execute(SLEEP, limits=Limits(wall_time_s=60)))
            await asyncio.to_thread(wait_for, lambda: server.status().running == 1)
            with pytest.raises(Overloaded, match="queue_timeout_s"):
                await executor.execute("1")
            await asyncio.to_thread(wait_for, lambda: own.bucket().effective_limit == 6)
            waits = asyncio.create_task(executor.execute("1"))
            await asyncio.to_thread(wait_for, lambda: server.status().queued == 1)
            with pytest.raises(Overloaded, match="max_queued"):
                async with client.lease() as lease:
                    await executor.execute("1", lease=lease)
            await asyncio.to_thread(wait_for, lambda: own.bucket().effective_limit <= 5)
            for call in (runs, waits):
                call.cancel()
            await asyncio.to_thread(wait_for, own.idle)


async def test_without_its_limiter_programs_are_killed_and_nothing_starts() -> None:
    marker, args = marked()
    with limiter_running() as own, running(f"limiter={own.target}", "limiter_timeout_s=1", "name=lonely") as server:
        async with ExecutorClient(server.target) as executor:
            call = asyncio.create_task(executor.execute(SLEEP, args=args, limits=Limits(wall_time_s=60)))
            await asyncio.to_thread(wait_for, lambda: processes_with(marker))
            own.process.send_signal(signal.SIGSTOP)
            result = await call
            assert (result.outcome, result.cause) == (Outcome.CANCELLED, Cause.INFRA)
            assert result.stdout.data == b"started\n"
            assert processes_with(marker) == []
            assert not server.status().limiter.valid
            lease = Lease("code", 1, 1, "client")
            with pytest.raises(ExecutorUnavailable, match=own.target):
                await executor.execute("1", lease=lease)
            with pytest.raises(ExecutorUnavailable, match=own.target):
                await executor.execute("1", call_timeout=60)
            assert server.readiness() == 1


def test_a_server_is_ready_when_it_has_reached_its_limiter() -> None:
    limiter = f"127.0.0.1:{free_port()}"
    words, target, health = command(f"limiter={limiter}", "languages=bash,python")
    with subprocess.Popen(words, cwd=ROOT, text=True) as process:
        server = Server(process, target, health)
        try:
            wait_for(lambda: server.readiness() is not None and _answers(server), START_WITHIN_S)
            assert server.readiness() == health_pb2.HealthCheckResponse.NOT_SERVING
            with limiter_running(f"listen={limiter}"):
                wait_for(lambda: server.readiness() == health_pb2.HealthCheckResponse.SERVING)
        finally:
            process.kill()


def _answers(server: Server) -> bool:
    try:
        return server.status().max_running > 0
    except grpc.RpcError:
        return False
