"""A stream that is closed while it is read: that is a lost connection, and not the end of the task that reads."""

from __future__ import annotations

import asyncio

import pytest

from limiter.client.grpc_transport import GrpcTransport
from limiter.client.transport import ConnectionLost
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
