"""One limiter in a process of its own that can be killed and started again on the same ports."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fairbox.channels import open_channel
from fairbox.ports import free_ports
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc
from tests.limiter.chaos.cluster import ONE_OF_MANY
from tests.limiter.servers import ROOT

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterAdminServiceAsyncStub

__all__ = ["LimiterProcess", "limiter_process"]

_ANSWERS_WITHIN_S = 60.0


class LimiterProcess:
    """`python -m limiter` with one bucket, `code`."""

    def __init__(self, *settings: str) -> None:
        port, admin = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self._admin = f"127.0.0.1:{admin}"
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, *settings: str) -> None:
        """Starts it and waits until it answers."""
        words = [f"listen={self.address}", f"admin_listen={self._admin}", *ONE_OF_MANY]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "limiter", *words, *self._settings, *settings, cwd=ROOT
        )
        await self.status()

    async def kill(self) -> None:
        """SIGKILL; returns when it is dead. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()

    async def status(self) -> pb.GetStatusResponse:
        """Its own account."""
        async with open_channel(self._admin) as channel:
            stub = cast("LimiterAdminServiceAsyncStub", limiter_pb2_grpc.LimiterAdminServiceStub(channel))
            return await stub.GetStatus(pb.GetStatusRequest(), timeout=_ANSWERS_WITHIN_S, wait_for_ready=True)

    async def bucket(self) -> pb.BucketStatus:
        """The state of its bucket."""
        return (await self.status()).buckets[0]

    def resident_kib(self) -> float:
        """Its resident memory."""
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1])
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
