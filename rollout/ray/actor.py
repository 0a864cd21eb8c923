"""A worker: an actor that holds one agent loop, with its engine and tools, and plays the trajectories that it is sent.

Invariants: the loop is opened by the first call, also in a process that Ray has started again; it is opened and closed
by one task, so that what is in it may use task groups; when its owner ends, Ray ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from rollout.loop.agent_loop import AgentLoop
from rollout.loop.results import TrajectoryResult
from rollout.loop.task import Task

__all__ = ["LoopFactory", "LoopFacts", "RolloutActor"]

LoopFactory = Callable[[], AbstractAsyncContextManager[AgentLoop]]
"""Called in the worker's process."""


@dataclass(frozen=True, slots=True)
class LoopFacts:
    """What a loop is made of, as its owner needs it."""

    model_name: str
    max_model_tokens: int
    schemas: list[dict[str, Any]]
    """Of its tools, OpenAI function schemas."""


class RolloutActor:
    """What Ray runs. Every method is a coroutine, so that Ray runs them all in one loop."""

    def __init__(self, factory: LoopFactory) -> None:
        self._factory = factory
        self._opened: asyncio.Future[AgentLoop] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def facts(self) -> LoopFacts:
        """What its loop is made of. Raises what keeps it from being opened; a further call tries again."""
        loop = await self._loop()
        return LoopFacts(loop.engine.model_name, loop.engine.max_model_tokens, loop.tools.schemas)

    async def run(self, task: Task, index: int, seed: int | None, attempt: int) -> TrajectoryResult:
        """One trajectory, as `AgentLoop.run`."""
        return await (await self._loop()).run(task, index=index, seed=seed, attempt=attempt)

    async def stop(self) -> None:
        """Closes the loop."""
        self._stop.set()
        if self._serving is not None:
            await self._serving

    async def _loop(self) -> AgentLoop:
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._opened))
        return await asyncio.shield(self._opened)

    async def _serve(self, opened: asyncio.Future[AgentLoop]) -> None:
        try:
            async with self._factory() as loop:
                opened.set_result(loop)
                await self._stop.wait()
        except Exception as error:  # the boundary of a worker: its owner is told
            if opened.done():
                raise
            self._opened = None
            opened.set_exception(error)
