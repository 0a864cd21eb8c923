"""The worker processes of a pool that are idle, and the killing of those that are not wanted any more.

Invariants: a process is either here or with one run; `kill()` returns when the process is dead, even where whoever
waits for it is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio

from limiter.pool.counters import Counters
from limiter.pool.process import WorkerProcess
from limiter.pool.waiting import uninterrupted

__all__ = ["Processes"]


class Processes:
    """Gives out started processes, the one that was used last first. `close()` it."""

    def __init__(self, max_bytes: int, counters: Counters) -> None:
        self._max_bytes = max_bytes
        self._counters = counters
        self._idle: list[WorkerProcess] = []
        self._closed = False
        self._kills: set[asyncio.Task[None]] = set()

    async def take(self) -> WorkerProcess:
        """A process that waits for a function. WorkerDied when none can be started."""
        while self._idle:
            worker = self._idle.pop()
            if worker.usable:
                return worker
            await self.kill(worker)
        worker = WorkerProcess(self._max_bytes)
        self._counters.started_total += 1
        try:
            await worker.start()
        except BaseException:
            await self.kill(worker)
            raise
        return worker

    async def put_back(self, worker: WorkerProcess) -> None:
        """Keeps a process that runs nothing for the next run; kills one that was given up."""
        if worker.usable and not self._closed:
            self._idle.append(worker)
        else:
            await self.kill(worker)

    async def kill(self, worker: WorkerProcess) -> None:
        """Kills a process. Its lease must not be released while it runs, so there is no end to the wait."""
        task = asyncio.create_task(worker.kill())
        self._kills.add(task)
        task.add_done_callback(self._kills.discard)
        await uninterrupted(task)
        task.result()

    async def close(self) -> None:
        """Kills those that are idle, and those that come back later."""
        self._closed = True
        while self._idle:
            await self.kill(self._idle.pop())
