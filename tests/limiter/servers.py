"""Real limiters on loopback, and programs that can be killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
import pytest

from fairbox.channels import open_channel
from fairbox.v1 import common_pb2
from limiter import Lease
from limiter.config import BucketConfig, LimiterConfig
from limiter.server import LimiterServer
from limiter.v1 import limiter_pb2_grpc

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterAdminServiceAsyncStub, LimiterServiceAsyncStub

ROOT = Path(__file__).parents[2]
ANYWHERE = "127.0.0.1:0"


@asynccontextmanager
async def limiter_server(
    max_in_flight: int = 2,
    *,
    max_queued: int = 100_000,
    max_queued_per_client: int = 10_000,
    start_by_s: float = 30.0,
    grace_s: float = 1.5,
    executor_ttl_s: float = 6.0,
    metrics_listen: str = "",
    fresh: bool = True,
) -> AsyncIterator[LimiterServer]:
    """A limiter in this process, on free ports, reached over gRPC."""
    bucket = BucketConfig(max_in_flight, max_queued, max_queued_per_client, start_by_s)
    config = LimiterConfig(
        listen=ANYWHERE,
        admin_listen=ANYWHERE,
        health_listen=ANYWHERE,
        metrics_listen=metrics_listen,
        buckets={"code": bucket},
        grace_s=grace_s,
        executor_ttl_s=executor_ttl_s,
        fresh=fresh,
    )
    async with LimiterServer(config) as server:
        yield server


@asynccontextmanager
async def unary_stub(server: LimiterServer) -> AsyncIterator[LimiterServiceAsyncStub]:
    """The generated stub on a channel of its own."""
    async with open_channel(server.address) as channel:
        yield cast("LimiterServiceAsyncStub", limiter_pb2_grpc.LimiterServiceStub(channel))


@asynccontextmanager
async def admin_stub(server: LimiterServer) -> AsyncIterator[LimiterAdminServiceAsyncStub]:
    """The operators' stub on a channel of its own."""
    async with open_channel(server.admin_address) as channel:
        yield cast("LimiterAdminServiceAsyncStub", limiter_pb2_grpc.LimiterAdminServiceStub(channel))


async def until(condition: Callable[[], bool], *, within: float = 10.0) -> None:
    """Returns when the condition holds; AssertionError when it does not within that many seconds."""
    try:
        async with asyncio.timeout(within):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"did not come true within {within} s") from None


async def queued(server: LimiterServer, count: int) -> None:
    """Returns when that many requests wait."""
    await until(lambda: server.statistics().queued == count)


@asynccontextmanager
async def program(source: str, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python program in a process of its own that says READY; killed at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, *args, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert (await process.stdout.readline()).strip() == b"READY"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def code_of(call: Awaitable[object]) -> grpc.StatusCode:
    """Status with which a call ends."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code()


def lease_message(lease: Lease) -> common_pb2.Lease:
    """The lease as the generated messages have it."""
    return common_pb2.Lease(
        bucket=lease.bucket, epoch=lease.epoch, seq=lease.seq, client_session_id=lease.client_session_id
    )
