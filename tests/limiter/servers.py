"""Real limiters on loopback, in this process and in their own, and programs that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio
import pytest

from fairbox.net.channels import open_channel
from fairbox.net.ports import free_ports
from fairbox.security import PLAINTEXT, ClientSecurity
from fairbox.v1 import common_pb2
from limiter import Lease
from limiter.config import BucketConfig, LimiterConfig
from limiter.server import LimiterServer
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc
from limiter.wire import session_of

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterAdminServiceAsyncStub, LimiterServiceAsyncStub

ROOT = Path(__file__).parents[2]
ANYWHERE = "127.0.0.1:0"
ONE_OF_MANY = ["health_listen=127.0.0.1:0", "metrics_listen="]
"""Settings of a limiter that is not the only one on its machine."""
_ANSWERS_WITHIN_S = 60.0


@asynccontextmanager
async def limiter_server(
    max_in_flight: int = 2,
    *,
    max_queued: int = 100_000,
    start_by_s: float = 30.0,
    max_hold_s: float = 0.0,
    grace_s: float = 1.5,
    executor_ttl_s: float = 6.0,
    metrics_listen: str = "",
    fresh: bool = True,
) -> AsyncIterator[LimiterServer]:
    """A limiter in this process, on free ports, reached over gRPC."""
    bucket = BucketConfig(max_in_flight, max_queued, start_by_s, max_hold_s=max_hold_s)
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
async def unary_stub(
    server: LimiterServer, security: ClientSecurity = PLAINTEXT
) -> AsyncIterator[LimiterServiceAsyncStub]:
    """The generated stub on a channel of its own."""
    async with open_channel(server.address, security=security) as channel:
        yield cast("LimiterServiceAsyncStub", limiter_pb2_grpc.LimiterServiceStub(channel))


@asynccontextmanager
async def admin_stub(
    server: LimiterServer | LimiterProcess, security: ClientSecurity = PLAINTEXT
) -> AsyncIterator[LimiterAdminServiceAsyncStub]:
    """The operators' stub on a channel of its own."""
    async with open_channel(server.admin_address, security=security) as channel:
        yield cast("LimiterAdminServiceAsyncStub", limiter_pb2_grpc.LimiterAdminServiceStub(channel))


async def status_of(admin_address: str, *, wait_for_ready: bool = True) -> pb.GetStatusResponse:
    """A limiter's own account; `wait_for_ready`: once it answers."""
    async with open_channel(admin_address) as channel:
        stub = cast("LimiterAdminServiceAsyncStub", limiter_pb2_grpc.LimiterAdminServiceStub(channel))
        return await stub.GetStatus(pb.GetStatusRequest(), timeout=_ANSWERS_WITHIN_S, wait_for_ready=wait_for_ready)


@asynccontextmanager
async def unary_lease(
    stub: LimiterServiceAsyncStub, request: pb.AcquireTokenRequest, *, timeout: float | None = None
) -> AsyncIterator[common_pb2.Lease]:
    """A lease as a program takes it that can't keep a stream: the call, and the release that the proto asks for however
    it ends. TimeoutError after `timeout` seconds, the call's own deadline."""
    request.client_id, request.request_id = request.client_id or uuid.uuid4().hex, request.request_id or "1"
    release = pb.ReleaseTokenRequest(client_id=request.client_id, request_id=request.request_id)

    async def give_back() -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stub.ReleaseToken(release, timeout=10)

    try:
        yield (await stub.AcquireToken(request, timeout=timeout)).lease
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        raise TimeoutError from None
    finally:
        await asyncio.shield(give_back())


class LimiterProcess:
    """`python -m limiter` with one bucket, `code`."""

    def __init__(self, *settings: str) -> None:
        port, admin = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self.admin_address = f"127.0.0.1:{admin}"
        self._settings = settings
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, *settings: str) -> None:
        """Starts it and waits until it answers."""
        words = [f"listen={self.address}", f"admin_listen={self.admin_address}", *ONE_OF_MANY]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "limiter", *words, *self._settings, *settings, cwd=ROOT
        )
        await self.status()
        async with open_channel(self.address) as channel, asyncio.timeout(_ANSWERS_WITHIN_S):
            await channel.channel_ready()  # this port opens after that for operators

    async def kill(self) -> None:
        """SIGKILL; returns when it is dead. Idempotent."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def status(self) -> pb.GetStatusResponse:
        """Its own account."""
        return await status_of(self.admin_address)

    async def recovered(self) -> None:
        """Returns when it leads and its recovery is over: before it leads, it has none."""
        while not (status := await self.status()).leader or status.recovering:
            await asyncio.sleep(0.02)

    async def bucket(self) -> pb.BucketStatus:
        """The state of its bucket."""
        return (await self.status()).buckets[0]

    def resident_kib(self) -> float:
        """Its resident memory."""
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024


@asynccontextmanager
async def limiter_process(*settings: str) -> AsyncIterator[LimiterProcess]:
    """A limiter that has nobody to wait for; killed at the end."""
    limiter = LimiterProcess(*settings)
    try:
        await limiter.start("fresh=true")
        yield limiter
    finally:
        await limiter.kill()


async def until(condition: Callable[[], bool], *, within: float = 60.0) -> None:
    """Returns when the condition holds; AssertionError when it does not within that many seconds: by default those in
    which a busy machine starts a process too."""
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


def raw_hello(name: str = "raw", kind: pb.SessionKind.ValueType = pb.SESSION_KIND_CLIENT, **more: Any) -> pb.Hello:
    """A hello of whoever knows the secret that is made from `name`."""
    secret = f"{name:*>16}"
    return pb.Hello(session_id=session_of(secret), secret=secret, kind=kind, **more)


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
