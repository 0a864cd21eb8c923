"""Runs the modules that a worker of the sandbox serves in real interpreters of their own, without a sandbox around.

For what happens between candidate and checker. What the sandbox adds is tested with real servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from executor_service.guest.serve.values import MAX_BYTES
from executor_service.model import InputFile, Output
from executor_service.sandbox.channel import Channel
from executor_service.sandbox.report import Killed, Plan, Report

ROOT = Path(__file__).parents[2]
_SERVE = """
import socket, sys, importlib
sys.path.append(sys.argv[3])
from executor_service.guest.protocol import wire

class Channel:
    def __init__(self, control):
        self.control = control
    def receive(self):
        try:
            return wire.receive(self.control)
        except (EOFError, ConnectionError):
            return None
    def send(self, head, blob=b""):
        wire.send(self.control, head, blob)

importlib.import_module("executor_service.guest.serve." + sys.argv[2]).serve(
    Channel(socket.socket(fileno=int(sys.argv[1])))
)
"""


class Worker:
    """One interpreter that serves `entry`, with the files of a plan in a folder of its own."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._killed = Killed.NOT
        self.killed_for: Killed | None = None

    def write(self, files: tuple[InputFile, ...]) -> None:
        for file in files:
            path = self._folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)

    async def start(self) -> None:
        """It runs already, and waits for its first frame."""

    def open(self) -> None:
        self._folder.mkdir(parents=True)
        self.write(self._plan.files)
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours, MAX_BYTES)
        with theirs, (self._folder / ".out").open("wb") as out, (self._folder / ".err").open("wb") as err:
            words = [sys.executable, "-c", _SERVE, str(theirs.fileno()), self._plan.entry, str(ROOT)]
            self.process = subprocess.Popen(
                words, cwd=self._folder, pass_fds=[theirs.fileno()], stdout=out, stderr=err, stdin=subprocess.DEVNULL
            )

    async def send(self, head: dict[str, Any], blob: bytes = b"") -> None:
        with contextlib.suppress(ConnectionError):
            await self.channel.send(head, blob)

    async def receive(self) -> tuple[dict[str, Any], bytes] | None:
        return await self.channel.receive()

    async def starved_s(self, within_s: float) -> float:
        return 0.0

    def kill(self, reason: Killed) -> None:
        self.killed_for = self._killed = self._killed or reason
        self.process.kill()

    async def end(self) -> Report:
        if self._killed is Killed.NOT:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, 0.5)
        self.process.kill()
        code = await asyncio.to_thread(self.process.wait, 30)
        outputs = []
        for name in (".out", ".err"):
            data = (self._folder / name).read_bytes()
            outputs.append(Output(data, len(data)))
        return Report(self._killed, max(code, 0), -min(code, 0), outputs[0], outputs[1])


class Workers:
    """Source of the grader's workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.taken: list[Worker] = []

    @contextlib.asynccontextmanager
    async def take(self, plan: Plan) -> AsyncIterator[Worker]:
        worker = Worker(plan, self._folder / f"{plan.entry}-{len(self.taken)}")
        self.taken.append(worker)
        try:
            worker.open()
            yield worker
        finally:
            worker.process.kill()
            await asyncio.to_thread(worker.process.wait)
            worker.channel.close()

    def alive(self) -> list[Worker]:
        return [worker for worker in self.taken if worker.process.poll() is None]
