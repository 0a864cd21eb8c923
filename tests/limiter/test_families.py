"""Leases within leases, over real gRPC."""

from __future__ import annotations

import asyncio

import pytest

from fairbox.ports import free_port
from limiter import ExecutorSession, Lease, LeaseRefused, LimiterClient
from limiter.client.unary import UnaryLimiterClient
from limiter.config import BucketConfig, LimiterConfig
from limiter.server import LimiterServer
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.servers import ANYWHERE, admin_stub, limiter_server, queued, until


async def test_programs_nest_without_a_deadlock() -> None:
    async with limiter_server(1) as server, LimiterClient(server.address) as client, admin_stub(server) as admin:

        async def program(depth: int, parent: Lease) -> int:
            async with client.lease(parent=parent) as lease:
                return 1 + (await program(depth - 1, lease) if depth else 0)

        async with asyncio.timeout(20), client.lease() as outer:
            other = asyncio.create_task(client.lease().__aenter__())
            await queued(server, 1)
            assert sum(await asyncio.gather(*(program(3, outer) for _ in range(5)))) == 20
            async with client.lease(parent=outer) as inner:
                listed = (await admin.ListLeases(pb.ListLeasesRequest())).leases
                assert [(each.tokens, each.parent.seq) for each in listed] == [(1, 0), (0, outer.seq)]
                assert listed[1].lease.seq == inner.seq
                waiter = asyncio.create_task(program(0, outer))
                await queued(server, 2)
                entries = (await admin.ListQueue(pb.ListQueueRequest())).entries
                assert [each.parent.seq for each in entries] == [0, outer.seq]
            await waiter
        await asyncio.wait_for(other, 5)


async def test_a_unary_call_names_its_parent() -> None:
    async with (
        limiter_server(1) as server,
        UnaryLimiterClient(server.address) as client,
        asyncio.timeout(20),
        client.lease() as outer,
        client.lease(parent=outer) as inner,
    ):
        assert server.statistics().held == 1
        with pytest.raises(LeaseRefused, match=r"tokens is 2, must be at most 1"):
            async with client.lease(tokens=2, parent=inner):
                pass
        for bad in (Lease("code", 0, 1, "c"), Lease("code", 1, 1, "")):
            with pytest.raises(LeaseRefused, match="parent"):
                async with client.lease(parent=bad):
                    pass


async def test_a_parent_that_is_not_there_is_refused_by_name() -> None:
    async with limiter_server(1) as server, LimiterClient(server.address) as client:
        for bad in (Lease("code", 1, 1, "nobody"), Lease("code", 1, 0, "nobody"), Lease("code", 1, 1, "")):
            with pytest.raises(LeaseRefused, match="parent"):
                await client.lease(parent=bad).__aenter__()


async def test_a_restarted_limiter_counts_a_family_once() -> None:
    listen = f"127.0.0.1:{free_port()}"
    config = LimiterConfig(
        listen=listen,
        admin_listen=ANYWHERE,
        health_listen=ANYWHERE,
        buckets={"code": BucketConfig(max_in_flight=4)},
        fresh=True,
    )
    async with LimiterClient(listen) as client, ExecutorSession(listen) as executor:
        async with LimiterServer(config), client.lease(tokens=3) as outer, client.lease(parent=outer) as inner:
            assert (await executor.bind(inner)).bound
            assert (await executor.bind(outer)).bound
        async with LimiterServer(config) as server:
            await until(lambda: server.statistics().bound == 3)
            executor.release(outer)
            await asyncio.sleep(0.1)
            assert (server.statistics().held, server.statistics().bound) == (3, 3)
            executor.release(inner)
            await until(lambda: server.statistics().held == 0)
