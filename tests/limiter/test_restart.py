"""A limiter is killed and started again: who waited goes on waiting, and what runs is counted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from fairbox.channels import open_channel
from fairbox.ports import free_ports
from limiter import BindStatus, ExecutorSession, Lease, LimiterClient
from limiter.client.grpc_transport import GrpcConnection, GrpcTransport
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc
from tests.limiter.servers import ROOT, until

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterAdminServiceAsyncStub


@asynccontextmanager
async def limiter_process(
    port: int, admin: int, limit: int = 1, *, fresh: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A limiter with `limit` tokens in a process of its own; SIGKILLed at the end."""
    words = [
        f"fresh={fresh}",
        "executor_ttl_s=3",
        f"listen=127.0.0.1:{port}",
        f"admin_listen=127.0.0.1:{admin}",
        "health_listen=127.0.0.1:0",
        "metrics_listen=",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "limiter", *words, f"buckets.code.max_in_flight={limit}", cwd=ROOT
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


class GatedTransport(GrpcTransport):
    """A network that connects only while it is up."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.up = asyncio.Event()
        self.up.set()

    async def connect(self) -> GrpcConnection:
        await self.up.wait()
        return await super().connect()


async def _bucket(admin: int) -> pb.BucketStatus:
    async with open_channel(f"127.0.0.1:{admin}") as channel:
        stub = cast("LimiterAdminServiceAsyncStub", limiter_pb2_grpc.LimiterAdminServiceStub(channel))
        status = await stub.GetStatus(pb.GetStatusRequest(), timeout=10, wait_for_ready=True)
        return status.buckets[0]


async def test_restarted_limiter_counts_what_runs_and_serves_those_who_waited_in_order() -> None:
    port, admin = free_ports(2)
    target = f"127.0.0.1:{port}"
    order: list[int] = []
    network = GatedTransport(target)
    async with (
        LimiterClient(target, unavailable_after=60, transport=network) as client,
        ExecutorSession(target, unavailable_after=60) as executor,
    ):

        async def wait(number: int) -> None:
            async with client.lease():
                order.append(number)

        async with limiter_process(port, admin, fresh=True), client.lease() as running:
            assert (await executor.bind(running, timeout=30)).bound
            epoch = executor.epoch
            waiters = [asyncio.create_task(wait(number)) for number in range(5)]
            while (await _bucket(admin)).queued < 5:
                await asyncio.sleep(0.02)
            network.up.clear()
        await until(lambda: not executor.connected and not client.connected)
        async with limiter_process(port, admin):
            await until(lambda: executor.connected, within=30)
            assert executor.epoch > epoch
            assert executor.vouches(running)
            assert (await _bucket(admin)).bound == 1
            network.up.set()
            await until(lambda: client.connected, within=30)
            assert order == []
            executor.release(running)
            await asyncio.wait_for(asyncio.gather(*waiters), 30)
            assert order == list(range(5))


async def test_lease_that_nobody_had_bound_leaves_its_place_to_the_one_that_is_asked_instead() -> None:
    port, admin = free_ports(2)
    target = f"127.0.0.1:{port}"
    order: list[str] = []
    async with (
        LimiterClient(target, unavailable_after=60) as client,
        LimiterClient(target, unavailable_after=60) as other,
        ExecutorSession(target, unavailable_after=60) as executor,
    ):

        async def wait(who: str, limiter: LimiterClient, void: Lease | None = None) -> None:
            async with limiter.lease(queue_timeout=120, instead_of=void):
                order.append(who)

        async with limiter_process(port, admin, fresh=True):
            granted = client.lease()
            void = await granted.__aenter__()
            tasks = [asyncio.create_task(wait("other", other))]
            while (await _bucket(admin)).queued < 1:
                await asyncio.sleep(0.02)
        await until(lambda: not executor.connected and not client.connected)
        async with limiter_process(port, admin):
            assert (await executor.bind(void, timeout=60)).status is BindStatus.WRONG_EPOCH
            await granted.__aexit__(None, None, None)
            tasks.append(asyncio.create_task(wait("instead", client, void)))
            await asyncio.wait_for(asyncio.gather(*tasks), 60)
            assert order == ["instead", "other"]


async def test_restarted_limiter_counts_a_heavy_lease_with_its_weight() -> None:
    port, admin = free_ports(2)
    target = f"127.0.0.1:{port}"
    async with (
        LimiterClient(target, unavailable_after=60) as client,
        ExecutorSession(target, unavailable_after=60) as executor,
    ):
        async with limiter_process(port, admin, limit=4, fresh=True), client.lease(tokens=3) as running:
            assert (await executor.bind(running, timeout=30)).bound
            epoch = executor.epoch
        async with limiter_process(port, admin, limit=4):
            await until(lambda: executor.connected and executor.epoch > epoch, within=30)
            bucket = await _bucket(admin)
            assert (bucket.held, bucket.bound) == (3, 3)
            executor.release(running)
            while (await _bucket(admin)).held:
                await asyncio.sleep(0.02)
