"""A stream that is closed while it is read: that is a lost connection, and not the end of the task that reads."""

from __future__ import annotations

import asyncio

import pytest

from limiter.client.grpc_transport import GrpcTransport
from limiter.client.transport import ConnectionLost
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.chaos.proxy import Proxy
from tests.limiter.servers import limiter_server


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
    hello = pb.SessionRequest(hello=pb.Hello(session_id="s", kind=pb.SESSION_KIND_CLIENT))
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
