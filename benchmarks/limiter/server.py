"""A limiter of the benchmark's own, on loopback, in a process that can be killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fairbox.net.channels import open_channel
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc
from rollout.stack import StackPorts

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterAdminServiceAsyncStub

ROOT = Path(__file__).parents[2]
LIMIT = 10
START_WITHIN_S = 60.0
_ONE_OF_MANY = ["health_listen=127.0.0.1:0", "metrics_listen="]
"""Settings of a limiter that is not the only one on its machine."""


class Server:
    """`python -m limiter` with one bucket, `code`."""

    def __init__(self, *settings: str) -> None:
        ports = StackPorts.free()
        self.address, self._admin = ports.limiter, ports.limiter_admin
        self._words = [
            f"listen={ports.limiter}",
            f"admin_listen={ports.limiter_admin}",
            *_ONE_OF_MANY,
            f"buckets.code.max_in_flight={LIMIT}",
            *settings,
        ]
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Pid of the running process."""
        assert self._process is not None
        return self._process.pid

    async def start(self, *settings: str) -> None:
        """Starts it; returns when it listens."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "limiter", *self._words, *settings, cwd=ROOT, stderr=asyncio.subprocess.PIPE
        )
        assert self._process.stderr is not None
        async with asyncio.timeout(START_WITHIN_S):
            while b"listening on" not in (line := await self._process.stderr.readline()):
                if not line:
                    raise RuntimeError("the limiter did not start")

    async def kill(self) -> None:
        """SIGKILL; returns when it is dead. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()

    async def bucket(self) -> pb.BucketStatus:
        """The state of its bucket."""
        async with open_channel(self._admin) as channel:
            stub = cast("LimiterAdminServiceAsyncStub", limiter_pb2_grpc.LimiterAdminServiceStub(channel))
            return (await stub.GetStatus(pb.GetStatusRequest(), timeout=START_WITHIN_S)).buckets[0]


@contextlib.asynccontextmanager
async def running(*settings: str) -> AsyncIterator[Server]:
    """A limiter that has nobody to wait for; killed at the end."""
    server = Server(*settings)
    try:
        await server.start("fresh=true")
        yield server
    finally:
        await server.kill()
