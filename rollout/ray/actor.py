"""A worker: an actor that holds one agent loop, with its engine and tools, and plays the trajectories that it is sent.

Invariants: it takes trajectories only while its loop is open; the loop is opened and closed by one task, so that what
is in it may use task groups; when its owner ends, Ray ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from rollout.loop.agent_loop import AgentLoop
from rollout.loop.results import TrajectoryResult
from rollout.loop.task import Task

__all__ = ["LoopFactory", "RolloutActor"]

LoopFactory = Callable[[], AbstractAsyncContextManager[AgentLoop]]
"""Called in the worker's process, once."""


class RolloutActor:
    """What Ray runs. Every method is a coroutine, so that Ray runs them all in one loop."""

    def __init__(self, factory: LoopFactory) -> None:
        self._factory = factory
        self._loop: AgentLoop | None = None
        self._opened = asyncio.Event()
        self._stop = asyncio.Event()

    async def serve(self) -> None:
        """Opens the loop, and closes it after `stop`. Raises what keeps it from being opened."""
        async with self._factory() as loop:
            self._loop = loop
            self._opened.set()
            try:
                await self._stop.wait()
            finally:
                self._loop = None

    async def opened(self) -> None:
        """Returns when it takes trajectories."""
        await self._opened.wait()

    async def ping(self) -> None:
        """Answers, which shows that its loop turns."""

    async def run(self, task: Task, index: int, seed: int | None, attempt: int) -> TrajectoryResult:
        """One trajectory, as `AgentLoop.run`."""
        assert self._loop is not None, "it is not open"
        return await self._loop.run(task, index=index, seed=seed, attempt=attempt)

    async def stop(self) -> None:
        """Ends `serve`."""
        self._stop.set()
