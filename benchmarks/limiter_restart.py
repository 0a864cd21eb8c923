"""How long nothing is granted after SIGKILL of the limiter while its executors are up, and whether the limit holds.

Counted from the moment at which the new process listens: when it is started is up to whoever watches over it.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path

from benchmarks.limiter_server import LIMIT, Server, running
from benchmarks.rows import Row, figure, median, skipped
from limiter import ExecutorSession, LimiterClient
from limiter.config import LEADERS

__all__ = ["rows"]

_KILLS = 5
_EXECUTORS = 3
_TASKS = 40
_HOLD_S = 0.05
_PAUSE_S = 1.5
_MOST_S = 1.5
_NAME = "SIGKILL of the limiter"


class _Load:
    """Tasks that run programs of 50 ms, and the count of those that run at once."""

    def __init__(self, client: LimiterClient, executors: list[ExecutorSession]) -> None:
        self._client = client
        self._executors = executors
        self.now = self.most = 0
        self.granted: list[tuple[int, float]] = []
        """Epoch and time of each grant."""

    async def task(self, number: int) -> None:
        executor = self._executors[number % len(self._executors)]
        while True:
            async with self._client.lease(queue_timeout=600) as lease:
                self.granted.append((lease.epoch, time.monotonic()))
                if not (await executor.bind(lease, timeout=60)).bound:
                    continue
                self.now += 1
                self.most = max(self.most, self.now)
                await asyncio.sleep(_HOLD_S)
                self.now -= 1
                executor.release(lease)


async def rows() -> list[Row]:
    """Several restarts under load."""
    if "file" not in LEADERS:
        return [skipped(f"{_NAME}: first grant", "without a roster a limiter waits for the whole ttl of executors")]
    times = []
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            settings = ("leader=file", f"state_file={Path(folder) / 'state.json'}")
            server = await stack.enter_async_context(running(*settings))
            client = await stack.enter_async_context(LimiterClient(server.address, unavailable_after=60))
            executors = [
                await stack.enter_async_context(ExecutorSession(server.address, unavailable_after=60))
                for _ in range(_EXECUTORS)
            ]
            load = _Load(client, executors)
            tasks = [asyncio.create_task(load.task(number)) for number in range(_TASKS)]
            try:
                for _ in range(_KILLS):
                    await asyncio.sleep(_PAUSE_S)
                    times.append(await _restart(server, load))
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
    failed = sum(1 for each in ended if not isinstance(each, asyncio.CancelledError))
    return [
        figure(f"{_NAME}: first grant, median", median(times), "s", most=_MOST_S),
        figure(f"{_NAME}: first grant, slowest", max(times), "s"),
        figure(f"{_NAME}: most programs at once", load.most, "", most=LIMIT),
        figure(f"{_NAME}: callers that saw an error", failed, "", most=0),
    ]


async def _restart(server: Server, load: _Load) -> float:
    """Seconds from listening to the first grant of the new epoch."""
    before = load.granted[-1][0]
    await server.kill()
    await server.start()
    began = time.monotonic()
    async with asyncio.timeout(60):
        while True:
            for epoch, at in reversed(load.granted):
                if epoch == before:
                    break
                first = at
            if load.granted[-1][0] > before:
                return first - began
            await asyncio.sleep(0.005)
