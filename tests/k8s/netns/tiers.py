"""Limiter, executor and a client under load, each in a network namespace of its own, on one bridge."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc as rpc
from tests.executor.servers import GROUPS
from tests.k8s.manifests import ROOT
from tests.k8s.netns.bridge import Bridge
from tests.k8s.runs import Run, read

LIMIT = 3
DEADLINE_S = 15.0
"""Deadline of each wait for a lease and of each call, in the client."""
_LOAD = Path(__file__).parents[1] / "load.py"
_START_WITHIN_S = 60.0


def unusable() -> str:
    """Reason why namespaces can't be made here; empty: they can."""
    if os.geteuid() != 0:
        return "network namespaces with devices take root"
    missing = [each for each in ("ip", "nsenter", "unshare") if shutil.which(each) is None]
    return f"{', '.join(missing)} not installed" if missing else ""


class Tiers:
    """Addresses of the namespaces, and what runs in them."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self.address: dict[str, str] = {}
        self._pids: dict[str, int] = {}
        self._stack = contextlib.AsyncExitStack()

    async def make(self, stack: contextlib.AsyncExitStack) -> None:
        """The namespaces, each held by a process that sleeps."""
        self._stack = stack
        for name in ("limiter", "executor", "client"):
            holder = await self.start("unshare", "--net", "sleep", "infinity")
            await _has_own_network(holder.pid)
            self._pids[name] = holder.pid
            self.address[name] = self.bridge.plug(holder.pid)

    async def start(self, *words: str, env: dict[str, str] | None = None) -> asyncio.subprocess.Process:
        """A process that ends with the block."""
        pipe = asyncio.subprocess.PIPE if env is not None else None
        process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, env=os.environ | (env or {}), stdout=pipe)
        self._stack.push_async_callback(_killed, process)
        return process

    async def run(self, tier: str, *words: str, env: dict[str, str] | None = None) -> asyncio.subprocess.Process:
        """Python in the namespace of a tier."""
        inside = ("nsenter", "-t", str(self._pids[tier]), "-n", "--", sys.executable)
        return await self.start(*inside, *words, env=env)

    async def load(self, seconds: float, tasks: int = 8) -> asyncio.subprocess.Process:
        """The client, at work for so long."""
        env = {
            "ROLLOUT_LIMITER": f"{self.address['limiter']}:50052",
            "ROLLOUT_EXECUTOR": f"{self.address['executor']}:50051",
            "LOAD_DEADLINE_S": str(DEADLINE_S),
            "PYTHONUNBUFFERED": "1",
        }
        return await self.run("client", str(_LOAD), str(seconds), str(tasks), "--stream", env=env)

    async def cut(self, tier: str, seconds: float) -> None:
        """Off the network for so long."""
        self.bridge.cut(self.address[tier], cut=True)
        await asyncio.sleep(seconds)
        self.bridge.cut(self.address[tier], cut=False)

    def bucket(self) -> pb.BucketStatus:
        """State of the limiter's bucket, asked for from outside all namespaces."""
        with grpc.insecure_channel(f"{self.address['limiter']}:50053") as channel:
            return rpc.LimiterAdminServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=10).buckets[0]

    async def up(self, port: str) -> None:
        """Until somebody listens there."""
        host, _, number = port.rpartition(":")
        deadline = time.monotonic() + _START_WITHIN_S
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(number))
                writer.close()
                return
            assert time.monotonic() < deadline, f"nobody listens on {port}"
            await asyncio.sleep(0.1)


async def runs_of(load: asyncio.subprocess.Process, within_s: float) -> list[Run]:
    """Runs of a load that has ended by itself."""
    async with asyncio.timeout(within_s):
        out, _ = await load.communicate()
    assert load.returncode == 0
    return read(out.decode())


@contextlib.asynccontextmanager
async def tiers() -> AsyncIterator[Tiers]:
    """All three, at work on nothing."""
    async with contextlib.AsyncExitStack() as stack:
        made = Tiers(stack.enter_context(Bridge("fbxn", "10.232.8.")))
        await made.make(stack)
        listen = "insecure=true"
        await made.run(
            "limiter", "-m", "limiter", "listen=0.0.0.0:50052", "health_listen=0.0.0.0:50062",
            "admin_listen=0.0.0.0:50053", f"buckets.code.max_in_flight={LIMIT}", "fresh=true", listen,
        )  # fmt: skip
        await made.up(f"{made.address['limiter']}:50052")
        await made.run(
            "executor", "-m", "executor_service", "listen=0.0.0.0:50051", "health_listen=0.0.0.0:50061",
            f"limiter={made.address['limiter']}:50052", "max_concurrent=8", "languages=bash,python",
            f"cgroups={GROUPS}", listen,
        )  # fmt: skip
        await made.up(f"{made.address['executor']}:50051")
        yield made


def _network(pid: int | str) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


async def _has_own_network(pid: int) -> None:
    """Returns when a process is in another network namespace than this one."""
    deadline = time.monotonic() + _START_WITHIN_S
    while _network(pid) == _network("self"):
        assert time.monotonic() < deadline, "unshare makes no namespace"
        await asyncio.sleep(0.02)


async def _killed(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
