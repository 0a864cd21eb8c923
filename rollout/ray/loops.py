"""Agent loops spread over a Ray cluster, behind the face of one.

Invariants: a worker or a node that dies costs the trajectories that it ran, which come back masked (cause INFRA) and
are run again by whoever runs them, under new ids; every wait has a deadline; leaving ends every worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from executor_service import Cause
from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import FairboxError
from rollout.engines.base import SamplingParams
from rollout.loop.limits import StopReason
from rollout.loop.results import TrajectoryResult
from rollout.loop.state import RequestState
from rollout.loop.task import Task
from rollout.ray.actor import LoopFactory, LoopFacts, RolloutActor
from rollout.ray.errors import ray_sentence
from rollout.ray.spread import RaySpread
from rollout.ray.workers import WorkersStatistics, WorkerTable
from rollout.tokens.chat import ChatTemplate
from rollout.tokens.segment import Segment, SegmentKind
from rollout.tokens.trajectory import Trajectory

__all__ = ["RayLoops"]

_LOG = logging.getLogger("fairbox.rollout.ray")
_STOP_WITHIN_S = 20.0
"""For a worker to release what its trajectories hold; then it is killed."""
_EXTRA_CALLS = 16
"""Calls of a worker beside its trajectories: serve, opened, ping, stop."""


class RayLoops:
    """`async with RayLoops(factory, spread, chat=..., sampling=...) as loops:`, then `loops.run(task, ...)` as of an
    `AgentLoop`, or a `RolloutRunner` over it.

    `factory` opens a loop in each worker. `chat` renders the prompts of trajectories that are lost, and `sampling` is
    recorded with them. Ray must be initialised. Needs the extra `ray`.
    """

    def __init__(
        self,
        factory: LoopFactory,
        spread: RaySpread,
        *,
        chat: ChatTemplate,
        sampling: SamplingParams,
        clock: Clock | None = None,
    ) -> None:
        self._factory = factory
        self._spread = spread
        self._chat = chat
        self._sampling = sampling
        self._clock = clock or MonotonicClock()
        self._table = WorkerTable(
            spread.workers, capacity=spread.capacity, restarts=spread.restarts, now=self._clock.now()
        )
        self._actors: dict[int, Any] = {}
        self._facts: LoopFacts | None = None
        self._changed = asyncio.Event()
        """Set, and replaced, when a worker changes or a place becomes free."""
        self._keeper: asyncio.Task[None] | None = None

    def statistics(self) -> WorkersStatistics:
        """The workers now."""
        return self._table.statistics()

    async def __aenter__(self) -> Self:
        import ray

        if not ray.is_initialized():
            raise FairboxError("Ray is not initialised: call ray.init() before")
        self._keeper = asyncio.get_running_loop().create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeper is not None
        self._keeper.cancel()
        await asyncio.shield(asyncio.gather(self._keeper, return_exceptions=True))

    async def facts(self) -> LoopFacts:
        """What a worker's loop is made of. Waits for the first worker; FairboxError when none gets ready."""
        try:
            async with asyncio.timeout(self._spread.start_within_s):
                while self._facts is None:
                    if self._table.hopeless:
                        raise FairboxError(f"no worker got ready: {self._table.why}")
                    await self._changed.wait()
        except TimeoutError:
            raise FairboxError(f"no worker was ready within {self._spread.start_within_s:g} s") from None
        return self._facts

    async def run(self, task: Task, *, index: int, seed: int | None, attempt: int = 1) -> TrajectoryResult:
        """One trajectory of a task, on the worker that runs the fewest."""
        taken = await self._take()
        if taken is None:
            why = f"no worker took it within {self._spread.wait_s:.0f} s"
            return self._lost(task, index, seed, attempt, f"{why}: {self._table.why}" if self._table.why else why)
        number, life = taken
        try:
            return await self._call(number, life, task, index, seed, attempt)
        finally:
            self._table.give_back(number, life)
            self._tell()

    async def _call(
        self, number: int, life: int, task: Task, index: int, seed: int | None, attempt: int
    ) -> TrajectoryResult:
        import ray
        from ray.exceptions import RayActorError, RayError

        reference = self._actors[number].run.remote(task, index, seed, attempt)
        try:
            result: TrajectoryResult = await reference
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
        except RayActorError as error:
            self._worker_lost(number, life, ray_sentence(error))
            return self._lost(task, index, seed, attempt, f"worker {number} was lost: {ray_sentence(error)}")
        except RayError as error:
            return self._lost(task, index, seed, attempt, f"worker {number}: {ray_sentence(error)}")
        return result

    async def _take(self) -> tuple[int, int] | None:
        """A place at a worker; None: there was none in time, or never will be."""
        try:
            async with asyncio.timeout(self._spread.wait_s):
                while (taken := self._table.take()) is None:
                    if self._table.hopeless:
                        return None
                    await self._changed.wait()
                return taken
        except TimeoutError:
            return None

    async def _keep(self) -> None:
        """Starts workers, and starts them again. Cancelled at the end; then it ends them all."""
        try:
            async with asyncio.TaskGroup() as lives:
                while True:
                    for number, life in self._table.due(self._clock.now()):
                        lives.create_task(self._live(number, life))
                    wake_at = self._table.wake_at
                    pause = None if wake_at is None else max(0.0, wake_at - self._clock.now())
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._changed.wait()
        finally:
            self._actors.clear()

    async def _live(self, number: int, life: int) -> None:
        """One life of a worker, from asking Ray for it to its end."""
        import ray

        spread = self._spread
        actor = (
            ray.remote(RolloutActor)
            .options(
                num_cpus=spread.num_cpus,
                num_gpus=spread.num_gpus,
                max_concurrency=spread.capacity + _EXTRA_CALLS,
                max_restarts=0,
                scheduling_strategy="SPREAD",
            )
            .remote(self._factory)
        )
        serving = asyncio.ensure_future(_awaited(actor.serve.remote()))
        watching = asyncio.ensure_future(self._watch(number, life, actor))
        try:
            await asyncio.wait({serving, watching}, return_when=asyncio.FIRST_COMPLETED)
            ended = serving if serving.done() else watching
            error = ended.exception()
            self._worker_lost(number, life, "it ended" if error is None else ray_sentence(error))
        finally:
            watching.cancel()
            await asyncio.shield(_end(actor, serving))

    async def _watch(self, number: int, life: int, actor: Any) -> None:
        """Raises TimeoutError when the worker is not ready in time, or does not answer."""
        async with asyncio.timeout(self._spread.start_within_s):
            self._facts = await actor.facts.remote()
        self._actors[number] = actor
        self._table.ready(number, life)
        self._tell()
        while True:
            await asyncio.sleep(self._spread.ping_every_s)
            async with asyncio.timeout(self._spread.ping_within_s):
                await actor.ping.remote()

    def _worker_lost(self, number: int, life: int, why: str) -> None:
        if self._table.lost(number, life, why, now=self._clock.now()):
            _LOG.warning("worker %d of the rollouts was lost: %s", number, why)
            self._tell()

    def _tell(self) -> None:
        """Wakes those that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _lost(self, task: Task, index: int, seed: int | None, attempt: int, why: str) -> TrajectoryResult:
        """What is known of a trajectory whose worker is gone: its prompt, and that the service failed."""
        prompt = self._chat.prompt_ids(task.messages, self._facts.schemas if self._facts else ())
        return TrajectoryResult(
            trajectory_id=uuid.uuid4().hex,
            uid=task.uid,
            index=index,
            trajectory=Trajectory((Segment(SegmentKind.PROMPT, prompt),)),
            messages=task.messages,
            tool_calls=(),
            state=RequestState.FAILED,
            stop_reason=StopReason.INFRA,
            cause=Cause.INFRA,
            turns=0,
            sampling=replace(self._sampling, seed=seed),
            attempts=attempt,
            error=why,
        )


async def _end(actor: Any, serving: asyncio.Future[None]) -> None:
    """Lets a worker close what it holds, and ends it."""
    import ray

    if not serving.done():
        with contextlib.suppress(Exception):  # the boundary to a process that may be gone: it is killed below
            async with asyncio.timeout(_STOP_WITHIN_S):
                await actor.stop.remote()
                await asyncio.wait({serving})
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    ray.kill(actor)


async def _awaited(reference: Any) -> None:
    await reference
