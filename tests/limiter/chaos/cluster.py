"""A limiter, executors and clients as processes of their own, with a network between them that can be disturbed.

Invariants: every process that was started is dead when the context is left; a process that was killed and started
again writes a journal of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path
from types import TracebackType

import grpc.aio

from fairbox.ports import free_ports
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.chaos.proxy import Proxy
from tests.limiter.servers import ONE_OF_MANY, ROOT, status_of

LIMIT = 6
TTL_S = 3.0
"""Of executors' sessions: short, so that a run of seconds sees many of them end."""
GRACE_S = 0.5
_TASKS = 8
_MAX_QUEUED = 20
"""Fewer than there are tasks, so that some requests are rejected while nothing is granted."""
_RETURN_WITHIN_S = 15.0
"""After the last fault: connections are tried again every second, and a killed process needs one to start."""
_END_WITHIN_S = 40.0
"""A task waits for a grant at most 20 s, and for its executor at most 15 s."""
_EMPTY_WITHIN_S = 15.0
"""Silence of a killed executor, the grace of a killed client, and a limiter that has to recover once more."""


class Cluster:
    """`async with Cluster(folder, seed) as cluster`: everything runs."""

    def __init__(self, folder: Path, seed: int, *, leader: str, clients: int = 3, executors: int = 2) -> None:
        """`leader` as in the limiter's settings."""
        self.folder = folder
        self._leadership = [f"leader={leader}"]
        if leader == "file":
            self._leadership.append(f"state_file={folder / 'leader.json'}")
        self.clients = [f"client-{number}" for number in range(clients)]
        self.executors = [f"executor-{number}" for number in range(executors)]
        self.proxies: dict[str, Proxy] = {}
        self._seed = seed
        self._port, self._admin, *ports = free_ports(2 + executors)
        self._ports = dict(zip(self.executors, ports, strict=True))
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._lives: dict[str, int] = {}
        self._log = (folder / "output.txt").open("ab")
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Cluster:
        async with self._stack:
            self._stack.callback(self._log.close)
            self._stack.push_async_callback(self._kill_all)
            for name in (*self.executors, *self.clients):
                self.proxies[name] = await self._stack.enter_async_context(Proxy(self._port))
            for name in ("limiter", *self.executors, *self.clients):
                await self.start(name)
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._stack.aclose())

    # What a nemesis does

    async def start(self, name: str) -> None:
        """Starts a process that does not run."""
        life = self._lives[name] = self._lives.get(name, -1) + 1
        self._processes[name] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *self._command(name, life), cwd=ROOT, stdout=self._log, stderr=self._log
        )

    async def kill(self, name: str) -> None:
        """SIGKILL; returns when it is dead."""
        process = self._processes[name]
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self._processes[name].send_signal(signal.SIGCONT)

    # The end

    async def returned(self) -> list[str]:
        """Waits until every client and executor has its session again; says who has not."""
        try:
            async with asyncio.timeout(_RETURN_WITHIN_S):
                await self.ready()
        except TimeoutError:
            known = {session.name.partition(".")[0] for session in (await self.status()).sessions if session.connected}
            return [f"{name} did not come back" for name in self.proxies if name not in known]
        return []

    async def end_clients(self) -> list[str]:
        """Lets every client end what it does; says who could not."""
        for name in self.clients:
            self._processes[name].terminate()
        waits = [asyncio.create_task(self._processes[name].wait()) for name in self.clients]
        await asyncio.wait(waits, timeout=_END_WITHIN_S)
        found = []
        for name, wait in zip(self.clients, waits, strict=True):
            if not wait.done():
                wait.cancel()
                found.append(f"{name} is stuck: it did not end within {_END_WITHIN_S:.0f} s")
            elif wait.result():
                found.append(f"{name} ended with code {wait.result()}")
        return found

    async def emptied(self) -> list[str]:
        """Waits until nothing is held and nothing waits; says what still is."""
        deadline = time.monotonic() + _EMPTY_WITHIN_S
        while True:
            status = await self.status()
            left = [bucket for bucket in status.buckets if bucket.held or bucket.queued]
            if not left:
                return []
            if time.monotonic() > deadline:
                return [
                    f"bucket {each.config.name}: {each.held} held, {each.queued} queued at the end" for each in left
                ]
            await asyncio.sleep(0.05)

    async def status(self) -> pb.GetStatusResponse:
        """The limiter's own account."""
        return await status_of(f"127.0.0.1:{self._admin}")

    async def ready(self) -> None:
        """Returns when every client and executor has been welcomed."""
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    known = {session.name for session in (await self.status()).sessions if session.connected}
                    if len(known) >= len(self.proxies):
                        return
                await asyncio.sleep(0.05)

    def _command(self, name: str, life: int) -> list[str]:
        if name == "limiter":
            return [
                "limiter",
                f"listen=127.0.0.1:{self._port}",
                f"admin_listen=127.0.0.1:{self._admin}",
                *ONE_OF_MANY,
                f"buckets.code.max_in_flight={LIMIT}",
                f"buckets.code.max_queued={_MAX_QUEUED}",
                f"grace_s={GRACE_S}",
                f"executor_ttl_s={TTL_S}",
                f"fresh={life == 0}",
                *self._leadership,
            ]
        target, folder = self.proxies[name].address, str(self.folder)
        if name in self._ports:
            return ["tests.limiter.chaos.executor", f"{name}.{life}", target, str(self._ports[name]), folder]
        ports = ",".join(str(port) for port in self._ports.values())
        seed = str(self._seed)
        return ["tests.limiter.chaos.client", f"{name}.{life}", target, folder, seed, str(_TASKS), ports]

    async def _kill_all(self) -> None:
        for name in self._processes:
            await self.kill(name)
