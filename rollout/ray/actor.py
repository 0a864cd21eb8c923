"""A worker: an actor that holds one agent loop, with its engine and tools, and plays the trajectories that it is sent.

Invariants: it takes trajectories only while its loop is open; the loop is opened and closed by one task, so that what
is in it may use task groups; when its owner ends, Ray ends it.
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
"""Called in the worker's process, once."""


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

    async def facts(self) -> LoopFacts:
        """What its loop is made of. Returns when it takes trajectories."""
        await self._opened.wait()
        assert self._loop is not None, "it is not open"
        engine = self._loop.engine
        return LoopFacts(engine.model_name, engine.max_model_tokens, self._loop.tools.schemas)

    async def ping(self) -> None:
        """Answers, which shows that its loop turns."""

    async def run(self, task: Task, index: int, seed: int | None, attempt: int) -> TrajectoryResult:
        """One trajectory, as `AgentLoop.run`."""
        assert self._loop is not None, "it is not open"
        return await self._loop.run(task, index=index, seed=seed, attempt=attempt)

    async def stop(self) -> None:
        """Ends `serve`."""
        self._stop.set()
