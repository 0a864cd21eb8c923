"""Channels reach servers that are far away or slow to greet, and those of this machine through no proxy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from fairbox.net.channels import open_channel, server_options
from fairbox.net.ports import free_port
from fairbox.security import ClientSecurity


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first_after_s: float) -> None:
    try:
        await asyncio.sleep(first_after_s)
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await asyncio.shield(writer.wait_closed())


@contextlib.asynccontextmanager
async def slow_to_greet(port: int, seconds: float) -> AsyncIterator[str]:
    """An address behind which the server's first bytes take that long."""
    pumps: set[asyncio.Task[None]] = set()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        pumps.add(asyncio.create_task(_pump(reader, inner_writer, 0.0)))
        pumps.add(asyncio.create_task(_pump(inner_reader, writer, seconds)))

    proxy = await asyncio.start_server(join, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    finally:
        proxy.close()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


@pytest.mark.parametrize("target", ["127.0.0.1", "localhost", "dns:///localhost"])
async def test_what_is_for_this_machine_goes_through_no_proxy(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.readline())
        writer.close()

    (tmp_path / "token").write_text("a-token-of-some-length")
    security = ClientSecurity(token_file=str(tmp_path / "token"))
    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        for name in ("no_grpc_proxy", "no_proxy", "grpc_proxy", "https_proxy"):
            monkeypatch.delenv(name, raising=False)
        for shown in (security, ClientSecurity()):
            async with open_channel(f"{target}:{free_port()}", security=shown) as channel:
                with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                    await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
    assert came == []


async def test_a_server_that_takes_its_time_to_greet_is_reached() -> None:
    """A loaded machine, or one on another continent: the attempt to connect is not given up at once."""
    server = grpc.aio.server(options=server_options())
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with slow_to_greet(port, 1.0) as address, open_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=20, wait_for_ready=False)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.stop(0)
