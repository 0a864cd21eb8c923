"""A limiter of the benchmark's own, on loopback, in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Server:
    """`python -m limiter` with one bucket, `code`."""

    address: str
    admin: str
    pid: int

    async def bucket(self) -> pb.BucketStatus:
        """The state of its bucket."""
        async with open_channel(self.admin) as channel:
            stub = cast("LimiterAdminServiceAsyncStub", limiter_pb2_grpc.LimiterAdminServiceStub(channel))
            return (await stub.GetStatus(pb.GetStatusRequest(), timeout=START_WITHIN_S)).buckets[0]


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Server]:
    """A limiter that listens, and has nobody to wait for; killed at the end."""
    ports = StackPorts.free()
    words = [f"listen={ports.limiter}", f"admin_listen={ports.limiter_admin}", *_ONE_OF_MANY]
    words += [f"buckets.code.max_in_flight={LIMIT}", "fresh=true"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "limiter", *words, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(START_WITHIN_S):
            while b"listening on" not in (line := await process.stderr.readline()):
                if not line:
                    raise RuntimeError("the limiter did not start")
        yield Server(ports.limiter, ports.limiter_admin, process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
