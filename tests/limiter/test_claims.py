"""Claims by clients about what an earlier limiter gave them: counted if it did, over gRPC, by limiters that are
killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
import pytest

from fairbox.net.channels import open_channel
from fairbox.v1 import common_pb2
from limiter import ExecutorSession, LimiterClient
from limiter.core import LeaseId, Ticket, Timing
from limiter.server.claims import Claims
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc
from tests.limiter.cores import listed
from tests.limiter.leadership.test_processes import leading
from tests.limiter.servers import LimiterProcess, limiter_process, limiter_server, queued, raw_hello, unary_stub, until

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterServiceAsyncStub

HOLDS = ("buckets.code.max_in_flight=2", "buckets.code.max_hold_s=60")


@asynccontextmanager
async def raw_stream(address: str, hello: pb.Hello) -> AsyncIterator[pb.Welcome]:
    """A session that says hello and stays open."""
    async with open_channel(address) as channel:
        stream = cast("LimiterServiceAsyncStub", limiter_pb2_grpc.LimiterServiceStub(channel)).Session()
        await stream.write(pb.SessionRequest(hello=hello))
        async with asyncio.timeout(20):
            frame = await stream.read()
        assert isinstance(frame, pb.SessionResponse), await stream.details()
        yield frame.welcome
        stream.cancel()


def made_up(number: int = 1) -> Iterator[pb.HeldLease]:
    """Held leases that no limiter has granted."""
    session = raw_hello("forger").session_id
    for seq in range(1, number + 1):
        lease = common_pb2.Lease(bucket="code", epoch=1, seq=seq, client_session_id=session)
        yield pb.HeldLease(lease=lease, tokens=1_000_000, hold_s=86_400, proof=b"0" * 16)


def pushy() -> pb.Hello:
    """Asks for the first place of all, and for the whole limit."""
    asks = pb.Acquire(request_id="pushy", ticket=pb.Ticket(epoch=1, seq=1, proof=b"0" * 16))
    return raw_hello("forger", held=made_up(3), queued=[asks])


def test_a_proof_is_good_for_what_it_was_given_for_and_nothing_else() -> None:
    claims, ticket, lease = Claims(b"key"), Ticket(5, 7), LeaseId(5, 8)
    proof = claims.ticket_proof("s", ticket, "code", "t")
    assert claims.owns_ticket(proof, "s", ticket, "code", "t")
    for other in (("z", ticket, "code", "t"), ("s", Ticket(5, 6), "code", "t"), ("s", ticket, "gpu", "t")):
        assert not claims.owns_ticket(proof, *other)
    assert not claims.owns_ticket(proof, "s", ticket, "code", "u")
    assert not Claims(b"another").owns_ticket(proof, "s", ticket, "code", "t")
    held = claims.hold_proof("s", lease, "code", 2, "t")
    assert claims.owns_hold(held, "s", lease, "code", 2, "t")
    assert not claims.owns_hold(held, "s", lease, "code", 3, "t")
    assert not claims.owns_hold(held, "s", lease, "code", 2, "u")
    assert not claims.owns_hold(proof, "s", LeaseId(*ticket), "code", 1, "t"), "a place is no lease"


async def test_a_made_up_ticket_and_made_up_holds_gain_nothing_from_a_limiter_that_runs() -> None:
    async with (
        limiter_server(1) as server,
        LimiterClient(server.address) as client,
        client.lease() as lease,
    ):
        waiting = [asyncio.create_task(client.lease().__aenter__()) for number in range(5)]
        await queued(server, 5)
        async with raw_stream(server.address, pushy()) as welcome:
            assert [each.seq for each in welcome.unknown] == [1, 2, 3]
            await queued(server, 6)
            assert server.statistics().held == 1
            assert listed(server.runner.core)[5:] == ["pushy"]
        client.release(lease)
        for each in waiting:
            each.cancel()


@pytest.mark.parametrize("leader", ["none", "file"])
async def test_nor_from_one_that_was_just_started_again(leader: str, tmp_path: Path) -> None:
    kept = (f"state_file={tmp_path / 'state'}",) if leader == "file" else ()
    async with (
        limiter_process(*HOLDS, f"leader={leader}", *kept, "buckets.code.max_in_flight=1") as limiter,
        LimiterClient(limiter.address, unavailable_after=60) as client,
    ):
        held = client.lease(hold=60, queue_timeout=120)
        await held.__aenter__()
        order: list[str] = []

        async def wait(name: str) -> None:
            async with client.lease(queue_timeout=120):
                order.append(name)

        tasks = [asyncio.create_task(wait(str(number))) for number in range(5)]
        while (await limiter.bucket()).queued < 5:
            await asyncio.sleep(0.02)
        await limiter.kill()
        await until(lambda: not client.connected)
        await limiter.start()
        await leading(limiter, within=60)  # it answers before it has written its state file
        async with raw_stream(limiter.address, pushy()) as welcome:
            assert welcome.recovering
            assert len(welcome.unknown) == 3
            while (bucket := await limiter.bucket()).held < 1 or bucket.queued < 6:
                await asyncio.sleep(0.02)
            await held.__aexit__(None, None, None)
            await asyncio.wait_for(asyncio.gather(*tasks), 60)
            assert order == ["0", "1", "2", "3", "4"]


async def _restart_with_holders(limiter: LimiterProcess, how: str) -> None:
    if how == "SIGKILL":
        await limiter.kill()
    else:
        process, limiter.process = limiter.process, None
        assert process is not None
        process.terminate()
        await asyncio.wait_for(process.wait(), 20)
    await limiter.start()


async def test_holds_and_order_outlive_leaders_where_there_is_no_executor(tmp_path: Path) -> None:
    async with (
        limiter_process(*HOLDS, "leader=file", f"state_file={tmp_path / 'state'}") as limiter,
        LimiterClient(limiter.address, unavailable_after=60) as holder,
        LimiterClient(limiter.address, unavailable_after=60) as other,
    ):
        holds = [holder.lease(hold=60) for _ in range(2)]
        for each in holds:
            await each.__aenter__()
        order: list[int] = []

        async def wait(number: int) -> None:
            async with (holder if number % 2 else other).lease(queue_timeout=120):
                order.append(number)

        tasks = []
        for number in range(10):
            tasks.append(asyncio.create_task(wait(number)))
            while (await limiter.bucket()).queued < number + 1:
                await asyncio.sleep(0.01)
        for how in ("SIGKILL", "SIGTERM"):
            await _restart_with_holders(limiter, how)
            await limiter.recovered()
            bucket = await limiter.bucket()
            assert (bucket.held, bucket.bound, bucket.queued, bucket.granted_total) == (2, 0, 10, 0)
        await holds[0].__aexit__(None, None, None)
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert order == list(range(10)), "one token goes from hand to hand"
        await holds[1].__aexit__(None, None, None)


@pytest.mark.xfail(strict=True, reason="a unary caller has no stream on which it could say what it holds")
async def test_what_a_unary_caller_holds_is_counted_after_a_restart(tmp_path: Path) -> None:
    async with limiter_process(*HOLDS, "leader=file", f"state_file={tmp_path / 'state'}") as limiter:
        async with open_channel(limiter.address) as channel:
            stub = cast("LimiterServiceAsyncStub", limiter_pb2_grpc.LimiterServiceStub(channel))
            await stub.AcquireToken(pb.AcquireTokenRequest(hold_s=60))
        await _restart_with_holders(limiter, "SIGTERM")
        await limiter.recovered()
        assert (await limiter.bucket()).held == 1


async def test_the_id_of_a_session_does_not_open_it() -> None:
    async with (
        limiter_server(1) as server,
        LimiterClient(server.address) as client,
        client.lease() as lease,
        unary_stub(server) as stub,
    ):
        for secret in ("", "x" * 16, lease.client_session_id):
            hello = pb.Hello(session_id=lease.client_session_id, secret=secret, kind=pb.SESSION_KIND_CLIENT)
            stream = stub.Session()
            await stream.write(pb.SessionRequest(hello=hello))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stream.read()
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert client.connected
        assert server.statistics().held == 1


@pytest.mark.timeout(400)
async def test_anonymous_callers_shut_no_executor_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limiter that takes fewer of them than by itself, and is as full with those."""
    most = Timing().max_sessions // 5
    monkeypatch.setattr("limiter.config.Timing", partial(Timing, max_sessions=most))
    async with limiter_server(1) as server, unary_stub(server) as stub:
        calls = [stub.AcquireToken(pb.AcquireTokenRequest(queue_timeout_s=300)) for _ in range(most + 50)]
        refused = 0
        async with asyncio.timeout(300):
            while len(server.runner.core._ledger.sessions) < most or refused < 50:
                await asyncio.sleep(0.05)
                refused = sum(call.done() for call in calls) - 1
        async with ExecutorSession(server.address) as executor, LimiterClient(server.address) as client:
            await until(lambda: executor.connected and client.connected, within=20)
        for call in calls:
            call.cancel()
