"""Choice of the limiter that a client tries next, and the fate of a stream that is closed while it is read."""

from __future__ import annotations

import asyncio

import pytest

from fairbox.errors import FieldErrors
from limiter import ExecutorSession, LimiterClient
from limiter.client.grpc_transport import GrpcTransport, Targets
from limiter.client.transport import ConnectionLost
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.chaos.proxy import Proxy
from tests.limiter.servers import limiter_server, raw_hello


async def test_reader_of_a_stream_that_is_closed_learns_that_it_is_lost() -> None:
    async with limiter_server() as server:
        transport = GrpcTransport(server.address)
        connection = await transport.connect()
        reader = asyncio.create_task(connection.receive())
        await asyncio.sleep(0.1)
        await connection.close()
        with pytest.raises(ConnectionLost, match="closed by this side"):
            await asyncio.wait_for(reader, 10)
        await transport.close()


async def test_reader_that_is_cancelled_is_cancelled() -> None:
    async with limiter_server() as server:
        transport = GrpcTransport(server.address)
        connection = await transport.connect()
        reader = asyncio.create_task(connection.receive())
        await asyncio.sleep(0.1)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await connection.close()
        await transport.close()


async def test_stream_after_one_that_was_given_up_does_not_take_its_connection() -> None:
    hello = pb.SessionRequest(hello=raw_hello())
    async with limiter_server() as server, Proxy(int(server.address.rpartition(":")[2])) as proxy:
        transport = GrpcTransport(proxy.address)
        try:
            for _ in range(2):
                connection = await transport.connect()
                await connection.send(hello)
                answer = await asyncio.wait_for(connection.receive(), 8.0)  # keepalive takes 14 s
                assert answer.HasField("welcome")
                proxy.lose()
                await connection.close()
        finally:
            await transport.close()


def test_one_address_is_tried_again_and_again_with_waits() -> None:
    targets = Targets("a:1")
    for _ in range(3):
        assert not targets.lost(worked=False)
        assert targets.current == "a:1"


def test_several_are_tried_in_turn_and_waits_come_between_rounds() -> None:
    targets = Targets("a:1, b:2 ,c:3")
    seen = [(targets.current, targets.lost(worked=False)) for _ in range(6)]
    assert seen == [("a:1", True), ("b:2", True), ("c:3", False)] * 2


def test_an_address_where_it_worked_is_tried_once_more_first() -> None:
    targets = Targets("a:1,b:2")
    assert not targets.lost(worked=True)
    assert targets.current == "a:1"
    assert targets.lost(worked=False)
    assert targets.current == "b:2"


@pytest.mark.parametrize("target", ["", "a:1,", ",", "a:1,,b:2", ",".join(["a:1"] * 17)])
def test_a_target_that_is_none_is_refused_at_once(target: str) -> None:
    for make in (LimiterClient, ExecutorSession):
        with pytest.raises(FieldErrors, match="target"):
            make(target)
