"""A limiter, executors and clients as processes of their own, with a network between them that can be disturbed.

Invariants: every process that was started is dead when the context is left; a process that was killed and started
again writes a journal of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import grpc.aio

from fairbox.net.ports import free_ports
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.chaos.journal import Journal
from tests.limiter.chaos.proxy import Proxy
from tests.limiter.chaos.world import World
from tests.limiter.servers import ONE_OF_MANY, ROOT, status_of

LIMIT = 6
GRACE_S = 0.5
_HOLD_S = 12.0
_MAX_QUEUED = 20
"""Fewer than there are tasks, so that some requests are rejected while nothing is granted."""
_RETURN_WITHIN_S = 60.0
"""After the last fault: connections are tried again every second, and a killed process needs one to start."""
_DISK_BYTES = 65536
_END_WITHIN_S = 40.0
"""A task waits for a grant at most 20 s, and for its executor at most 15 s."""
_EMPTY_WITHIN_S = _HOLD_S + 15.0
"""Holds and the grace of a killed client, silence of a killed executor, and one more recovery."""


class Cluster:
    """`async with Cluster(folder, seed) as cluster`: everything runs."""

    def __init__(self, folder: Path, seed: int, world: World) -> None:
        self.folder = folder
        self.world = world
        self.disk = folder / "disk"
        """Folder in which a limiter keeps its state; with `small`, a disk of its own."""
        self.small = False
        self.clients = [f"client-{number}" for number in range(world.clients)]
        self.executors = [f"executor-{number}" for number in range(world.executors)]
        self.proxies: dict[str, Proxy] = {}
        self._seed = seed
        self._port, self._admin, *ports = free_ports(2 + world.executors)
        self._ports = dict(zip(self.executors, ports, strict=True))
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._lives: dict[str, int] = {}
        self._kills = Journal(folder / "limiter.jsonl")
        self._log = (folder / "output.txt").open("ab")
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Cluster:
        async with self._stack:
            self._stack.callback(self._log.close)
            await self._mount()
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

    async def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Returns when it is dead."""
        process = self._processes[name]
        if name == "limiter":
            self._kills.note("killed")
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
        await process.wait()

    async def revive(self, name: str) -> None:
        """Starts a process again that has ended by itself."""
        if self._processes[name].returncode is not None:
            await self.start(name)

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
            return [f"{name} did not come back" for name in self.proxies if name not in await self._known()]
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
        async with asyncio.timeout(_RETURN_WITHIN_S):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    if await self._known() >= set(self.proxies):
                        return
                await asyncio.sleep(0.05)

    async def _known(self) -> set[str]:
        """Clients and executors whose present life has its session."""
        names = {session.name for session in (await self.status()).sessions if session.connected}
        return {name for name, life in self._lives.items() if f"{name}.{life}" in names}

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
                f"buckets.code.max_hold_s={_HOLD_S if self.world.holds else 0}",
                f"executor_ttl_s={self.world.ttl_s}",
                f"fresh={life == 0}",
                f"leader={self.world.leader}",
                *([f"state_file={self.disk / 'leader.json'}"] if self.world.leader == "file" else []),
            ]
        target, folder = self.proxies[name].address, str(self.folder)
        if name in self._ports:
            return ["tests.limiter.chaos.executor", f"{name}.{life}", target, str(self._ports[name]), folder]
        ports = ",".join(str(port) for port in self._ports.values())
        world = json.dumps(asdict(self.world))
        return ["tests.limiter.chaos.client", f"{name}.{life}", target, folder, str(self._seed), world, ports]

    async def _mount(self) -> None:
        """A disk that is soon full; needs root."""
        self.disk.mkdir()
        if self.world.disk:
            small = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(self.disk)]
            mount = await asyncio.create_subprocess_exec(*small, stderr=asyncio.subprocess.DEVNULL)
            self.small = not await mount.wait()
        if self.small:
            self._stack.push_async_callback(self._unmount)

    async def _unmount(self) -> None:
        await (await asyncio.create_subprocess_exec("umount", "-l", str(self.disk))).wait()

    async def _kill_all(self) -> None:
        for name in self._processes:
            await self.kill(name)
