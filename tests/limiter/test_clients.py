"""Clients and executors over real gRPC: order, cancellation, reconnection, and what a killed executor costs."""

from __future__ import annotations

import asyncio
import time

import pytest

from fairbox.errors import FieldErrors
from fairbox.testing import ManualClock
from limiter import (
    BindStatus,
    ExecutorSession,
    Lease,
    LeaseRefused,
    LimiterClient,
    LimiterUnavailable,
    QueueFull,
    QueueTimeout,
    UnknownBucket,
)
from limiter.client.grpc_transport import GrpcTransport
from limiter.client.transport import Connection, ConnectionLost
from limiter.core.events import Revoke
from limiter.core.ids import LeaseId
from limiter.server import LimiterServer
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.servers import limiter_server, program, queued, until


async def test_waiter_removed_when_its_task_is_cancelled() -> None:
    async with limiter_server(1) as server, LimiterClient(server.address) as client:
        async with client.lease():
            waiter = asyncio.create_task(client.lease().__aenter__())
            await queued(server, 1)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            await queued(server, 0)
            assert client.waiting == 0
        await until(lambda: server.statistics().held == 0)


async def test_failed_waits_release_nothing_that_they_did_not_have() -> None:
    async with limiter_server(1) as server, LimiterClient(server.address) as client:
        async with client.lease():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.lease(queue_timeout=60).__aenter__()
            await queued(server, 0)
            # Nothing of that may have freed the token that is held.
            with pytest.raises(QueueTimeout):
                await client.lease(queue_timeout=0.2).__aenter__()
            assert server.statistics().held == 1
        await until(lambda: server.statistics().held == 0)


async def test_typed_errors_say_what_is_wrong() -> None:
    async with limiter_server(1, max_queued=1) as server, LimiterClient(server.address) as client:
        with pytest.raises(UnknownBucket, match="bucket is 'nope', must be one of code"):
            await client.lease("nope").__aenter__()
        with pytest.raises(LeaseRefused, match="tokens is 2, must be at most 1"):
            await client.lease(tokens=2).__aenter__()
        with pytest.raises(FieldErrors, match="queue_timeout is 0"):
            client.lease(queue_timeout=0)
        async with client.lease():
            with pytest.raises(QueueTimeout, match="in the queue of bucket code were not enough"):
                await client.lease(queue_timeout=0.05).__aenter__()
            waiter = asyncio.create_task(client.lease(queue_timeout=5).__aenter__())
            await queued(server, 1)
            with pytest.raises(QueueFull) as full:
                await client.lease().__aenter__()
            assert full.value.retry_after > 0
            waiter.cancel()


async def test_unreachable_limiter_ends_a_wait_in_time() -> None:
    async with LimiterClient("127.0.0.1:1", unavailable_after=0.3) as client:
        started = time.monotonic()
        with pytest.raises(LimiterUnavailable, match=r"127\.0\.0\.1:1"):
            await client.lease(queue_timeout=60).__aenter__()
        assert time.monotonic() - started < 5


async def test_client_belongs_to_the_loop_that_entered_it() -> None:
    client = LimiterClient("127.0.0.1:1")
    with pytest.raises(RuntimeError, match="event loop and the process"):
        await client.lease().__aenter__()


async def test_closed_limiter_tells_its_waiters() -> None:
    async with (
        limiter_server(1) as server,
        LimiterClient(server.address, unavailable_after=0.2) as client,
        client.lease(),
    ):
        waiter = asyncio.create_task(client.lease().__aenter__())
        await queued(server, 1)
        await server.stop()
        with pytest.raises(LimiterUnavailable):
            await waiter


async def test_waiters_keep_their_order_over_a_lost_connection() -> None:
    async with (
        limiter_server(1) as server,
        LimiterClient(server.address) as client,
        LimiterClient(server.address) as other,
    ):
        order: list[int] = []

        async def wait(number: int) -> None:
            async with client.lease():
                order.append(number)

        async with other.lease():
            tasks = []
            for number in range(5):
                tasks.append(asyncio.create_task(wait(number)))
                await queued(server, number + 1)
            await _cut(server, client)
            late = asyncio.create_task(other.lease().__aenter__())
            await until(lambda: client.connected and server.statistics().queued == 6)
        await asyncio.gather(*tasks)
        assert order == list(range(5))
        await late
        await queued(server, 0)


async def _cut(server: LimiterServer, client: LimiterClient) -> None:
    """Ends the client's stream from the server's side, as a broken connection would."""
    server.runner._sinks[client.session_id].close("cut by the test", 0.0)
    await until(lambda: not client.connected)


async def test_bound_lease_survives_its_client_and_is_freed_by_its_executor() -> None:
    async with limiter_server(1, grace_s=0.2) as server, ExecutorSession(server.address, executor_id="e") as executor:
        async with LimiterClient(server.address) as client, client.lease() as lease:
            outcome = await executor.bind(lease, run_id="run-1")
            assert (outcome.bound, outcome.status) == (True, BindStatus.BOUND)
        await asyncio.sleep(0.5)
        statistics = server.statistics()
        assert (statistics.held, statistics.bound) == (1, 1)
        executor.release(lease)
        await until(lambda: server.statistics().held == 0)
        assert server.statistics().bucket().released_total == 1


async def test_binds_of_the_wrong_client_and_of_a_second_executor_are_refused() -> None:
    async with (
        limiter_server(2) as server,
        LimiterClient(server.address) as client,
        ExecutorSession(server.address, executor_id="first") as first,
        ExecutorSession(server.address, executor_id="second") as second,
        client.lease() as lease,
    ):
        stolen = Lease(lease.bucket, lease.epoch, lease.seq, "somebody-else")
        assert (await first.bind(stolen)).status is BindStatus.WRONG_CLIENT
        old = Lease(lease.bucket, lease.epoch - 1, lease.seq, lease.client_session_id)
        assert (await first.bind(old)).status is BindStatus.WRONG_EPOCH
        unknown = Lease(lease.bucket, lease.epoch, lease.seq + 9, lease.client_session_id)
        assert (await first.bind(unknown)).status is BindStatus.UNKNOWN_LEASE
        assert (await first.bind(lease)).bound
        refused = await second.bind(lease)
        assert (refused.status, refused.owner) == (BindStatus.BOUND_ELSEWHERE, "first")
        assert str(refused) == f"lease {lease} is bound by another executor, first"
        with pytest.raises(LeaseRefused, match="in use by another run"):
            await first.bind(lease)


async def test_executor_acquires_for_work_that_came_without_a_lease() -> None:
    async with limiter_server(1) as server, ExecutorSession(server.address) as executor:
        async with executor.acquire() as lease:
            assert server.statistics().bound == 1
            assert executor.held == (lease,)
        await until(lambda: server.statistics().held == 0)


async def test_session_stays_valid_by_heartbeats_and_lapses_without() -> None:
    """Its clock is moved by hand: on the machine's, a process that waits for a processor lapses rightly."""
    clock, lost = ManualClock(), list[float]()
    async with (
        limiter_server(1, executor_ttl_s=2.0) as server,
        LimiterClient(server.address) as client,
        ExecutorSession(server.address, clock=clock) as executor,
        client.lease() as lease,
    ):
        assert (await executor.bind(lease)).bound
        executor.when_lost(lease, lambda: lost.append(clock.now()))
        for _ in range(6):
            clock.advance(0.5)  # a heartbeat is due
            executor._runner._dirty.set()
            await until(lambda: executor.valid_until > clock.now() + 1.9)
        assert executor.vouches(lease)
        assert lost == []
        await server.stop()
        valid_until = executor.valid_until
        clock.advance(2.0)
        await until(lambda: lost != [])
        assert lost[0] >= executor.valid_until == valid_until
        assert not executor.valid
        executor.when_lost(lease, lambda: lost.append(0.0))
        assert lost[1:] == [0.0]
        with pytest.raises(LimiterUnavailable, match=r"no bind in 0\.2 s"):
            await executor.bind(Lease("code", 1, 1, "x"), timeout=0.2)


class _CutsOneBind:
    """A transport that loses the first bind, and the connection with it."""

    def __init__(self, inner: GrpcTransport) -> None:
        self._inner = inner
        self.cut = False

    @property
    def target(self) -> str:
        return self._inner.target

    async def connect(self) -> Connection:
        connection = await self._inner.connect()
        send = connection.send

        async def cutting(frame: pb.SessionRequest) -> None:
            if frame.binds and not self.cut:
                self.cut = True
                raise ConnectionLost("cut")
            await send(frame)

        connection.send = cutting  # type: ignore[method-assign]
        return connection

    async def close(self) -> None:
        await self._inner.close()


async def test_work_without_a_lease_waits_again_when_the_connection_is_lost_before_it_is_bound() -> None:
    async with limiter_server(1) as server:
        transport = _CutsOneBind(GrpcTransport(server.address))
        async with ExecutorSession(server.address, transport=transport) as executor:
            async with executor.acquire(queue_timeout=30) as lease:
                assert executor.vouches(lease)
            assert transport.cut
            await until(lambda: (server.statistics().held, server.statistics().queued) == (0, 0))


async def test_executor_reconnects_and_keeps_what_it_runs() -> None:
    async with (
        limiter_server(2) as server,
        LimiterClient(server.address) as client,
        ExecutorSession(server.address) as executor,
        client.lease() as kept,
        client.lease() as dropped,
    ):
        assert (await executor.bind(kept)).bound
        assert (await executor.bind(dropped)).bound
        server.runner._sinks[executor.session_id].close("cut by the test", 0.0)
        await until(lambda: not executor.connected)
        assert server.statistics().bound == 2, "a disconnect frees nothing"
        executor.release(dropped)
        await until(lambda: executor.connected)
        await until(lambda: server.statistics().bound == 1)
        assert executor.held == (kept,)
        assert executor.valid


async def test_revoked_lease_is_reported_to_the_executor_that_runs_under_it() -> None:
    async with (
        limiter_server(1) as server,
        LimiterClient(server.address) as client,
        ExecutorSession(server.address) as executor,
        client.lease() as lease,
    ):
        await executor.bind(lease)
        assert executor.vouches(lease)
        lost = asyncio.Event()
        executor.when_lost(lease, lost.set)
        server.runner.apply(Revoke(LeaseId(lease.epoch, lease.seq), force=True))
        await asyncio.wait_for(lost.wait(), 5)
        assert not executor.vouches(lease)
        again = asyncio.Event()
        executor.when_lost(lease, again.set)
        assert again.is_set()
        assert server.statistics().held == 1
        executor.release(lease)
        await until(lambda: server.statistics().held == 0)


EXECUTOR_PROGRAM = """
import asyncio, sys
from limiter import ExecutorSession, Lease

async def main():
    lease = Lease(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    async with ExecutorSession(sys.argv[1], executor_id="victim") as session:
        assert (await session.bind(lease)).bound
        print("READY", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_killed_executor_is_counted_until_its_ttl_has_passed() -> None:
    async with (
        limiter_server(1, start_by_s=600, executor_ttl_s=1.0) as server,
        LimiterClient(server.address) as client,
    ):
        async with client.lease() as lease:
            fields = (lease.bucket, str(lease.epoch), str(lease.seq), lease.client_session_id)
            async with program(EXECUTOR_PROGRAM, server.address, *fields) as process:
                await asyncio.sleep(1.5)
                assert server.statistics().bound == 1, "heartbeats keep it alive"
                process.kill()
                killed = time.monotonic()
                await process.wait()
                sessions = server.runner.core.sessions
                await until(lambda: not any(each.connected for each in sessions(9) if each.name == "victim"))
                assert server.statistics().bound == 1, "a disconnect must not free it"
                await until(lambda: server.statistics().held == 0)
                # The last heartbeat was at most a quarter of the ttl before the kill.
                assert time.monotonic() - killed > 1.0 * 1.02 + 0.1 - 0.25 - 0.1
        async with client.lease(queue_timeout=5):
            pass
