"""Agent loops spread over a Ray cluster, behind the interface of one.

Invariants: a worker or a node that dies costs the trajectories that it ran, which come back masked (cause INFRA) and
are run again by whoever runs them, under new ids; Ray starts the worker again; every wait has a deadline; leaving ends
every worker.

`RolloutActor`: the loop is opened by the first call, also in a process that Ray has started again; it is opened and
closed by one task, so that what is in it may use task groups; when its owner ends, Ray ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from executor_service import Cause
from fairbox.errors import FairboxError
from rollout.config import RaySpread
from rollout.engines.base import SamplingParams
from rollout.loop.agent_loop import AgentLoop
from rollout.loop.limits import StopReason
from rollout.loop.results import TrajectoryResult
from rollout.loop.state import RequestState
from rollout.loop.task import Task
from rollout.ray.cluster import ray_sentence
from rollout.tokens.chat import ChatTemplate
from rollout.tokens.segment import Segment, SegmentKind
from rollout.tokens.trajectory import Trajectory

LoopFactory = Callable[[], AbstractAsyncContextManager[AgentLoop]]
"""Opens a loop; called in the worker's process."""


@dataclass(frozen=True, slots=True)
class LoopInfo:
    """Facts about a loop that its owner needs."""

    model_name: str
    max_model_tokens: int
    schemas: list[dict[str, Any]]
    """OpenAI function schemas of its tools."""


class RolloutActor:
    """The actor that Ray runs. Every method is a coroutine, so that Ray runs them all in one event loop."""

    def __init__(self, factory: LoopFactory) -> None:
        self._factory = factory
        self._opened: asyncio.Future[AgentLoop] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def facts(self) -> LoopInfo:
        """Facts about its loop. Raises the error that kept the loop from opening; a further call tries again."""
        loop = await self._loop()
        return LoopInfo(loop.engine.model_name, loop.engine.max_model_tokens, loop.tools.schemas)

    async def run(self, task: Task, index: int, seed: int | None, attempt: int) -> TrajectoryResult:
        """Plays one trajectory, as `AgentLoop.run` does."""
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


_LOG = logging.getLogger("fairbox.rollout.ray")
CAPACITY = 64
"""Trajectories that a worker runs at once."""
NUM_CPUS = 1.0
"""Processors that Ray keeps for a worker."""
RESTARTS = 8
"""Times that Ray restarts a worker that died."""
_OPENINGS = 3
"""Tries to open a worker's loop, in a process that lives."""
_START_WITHIN_S = 600.0
"""Longest time until a worker is ready: placement, loading the model."""
_WAIT_S = 600.0
"""Longest wait of a trajectory for a worker; then it is masked."""
_STOP_WITHIN_S = 20.0
"""Seconds for a worker to release what its trajectories hold; then it is killed."""
_PAUSE_S = 1.0
_EXTRA_CALLS = 16
"""Calls of a worker beside its trajectories."""


@dataclass(frozen=True, slots=True)
class WorkersStatistics:
    """Counts over all workers."""

    ready: int
    starting: int
    given_up: int
    running: int
    """Trajectories."""
    lost: int
    """Processes of workers that died, over the whole run."""

    def __str__(self) -> str:
        return f"{self.ready} ready, {self.starting} starting, {self.given_up} given up; {self.lost} were lost"


@dataclass(eq=False, slots=True)
class _Worker:
    """An actor, and what is known of it."""

    number: int
    actor: Any
    running: int = 0
    ready: bool = False
    given_up: bool = False
    lives: int = 0
    """Its processes that were ready, up to this one."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its process died."""


class RayLoops:
    """`async with RayLoops(factory, spread, chat=..., sampling=...) as loops:`, then `loops.run(task, ...)` as of an
    `AgentLoop`, or a `RolloutRunner` over it.

    `factory` opens a loop in each worker. `chat` renders the prompts of trajectories that are lost, and `sampling` is
    recorded with them. Ray must be initialised. Needs the extra `ray`.
    """

    def __init__(
        self, factory: LoopFactory, spread: RaySpread, *, chat: ChatTemplate, sampling: SamplingParams
    ) -> None:
        self._factory = factory
        self._spread = spread
        self._chat = chat
        self._sampling = sampling
        self._workers: list[_Worker] = []
        self._watching: list[asyncio.Task[None]] = []
        self._facts: LoopInfo | None = None
        self._lost = 0
        self._why = ""
        """Reason that the last lost worker was lost."""
        self._changed = asyncio.Event()
        """Set, and replaced, when a worker changes or a place becomes free."""

    def statistics(self) -> WorkersStatistics:
        """The workers now."""
        ready = sum(worker.ready for worker in self._workers)
        given_up = sum(worker.given_up for worker in self._workers)
        return WorkersStatistics(
            ready=ready,
            starting=len(self._workers) - ready - given_up,
            given_up=given_up,
            running=sum(worker.running for worker in self._workers),
            lost=self._lost,
        )

    async def __aenter__(self) -> Self:
        import ray

        kind = ray.remote(RolloutActor).options(
            num_cpus=NUM_CPUS,
            num_gpus=self._spread.num_gpus,
            max_concurrency=CAPACITY + _EXTRA_CALLS,
            max_restarts=RESTARTS,
            scheduling_strategy="SPREAD",
        )
        self._workers = [_Worker(number, kind.remote(self._factory)) for number in range(self._spread.workers)]
        self._watching = [asyncio.create_task(self._watch(worker)) for worker in self._workers]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._watching:
            task.cancel()
        ends = (_end(worker.actor) for worker in self._workers)
        await asyncio.shield(asyncio.gather(*self._watching, *ends, return_exceptions=True))

    async def facts(self) -> LoopInfo:
        """Facts about a worker's loop. Waits for the first worker; raises FairboxError if none gets ready."""
        while self._facts is None:
            if self._hopeless:
                raise FairboxError(f"no worker got ready: {self._why}")
            await self._changed.wait()
        return self._facts

    async def run(self, task: Task, *, index: int, seed: int | None, attempt: int = 1) -> TrajectoryResult:
        """Plays one trajectory of a task, on the worker that runs the fewest."""
        worker = await self._take()
        if worker is None:
            why = f"no worker took it within {_WAIT_S:.0f} s"
            return self._masked(task, index, seed, attempt, f"{why}: {self._why}" if self._why else why)
        try:
            return await self._call(worker, task, index, seed, attempt)
        finally:
            worker.running -= 1
            self._tell()

    async def _call(self, worker: _Worker, task: Task, index: int, seed: int | None, attempt: int) -> TrajectoryResult:
        import ray
        from ray.exceptions import RayActorError, RayError

        life = worker.lives
        reference = worker.actor.run.remote(task, index, seed, attempt)
        try:
            result: TrajectoryResult = await reference
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
        except RayActorError as error:
            if worker.ready and worker.lives == life:  # else the next process is there, and has nothing to do with it
                self._lost += 1
                self._left(worker, ray_sentence(error))
                worker.lost.set()
            return self._masked(task, index, seed, attempt, f"worker {worker.number} was lost: {ray_sentence(error)}")
        except RayError as error:
            return self._masked(task, index, seed, attempt, f"worker {worker.number}: {ray_sentence(error)}")
        return result

    @property
    def _hopeless(self) -> bool:
        """True if no worker will ever be ready again."""
        return all(worker.given_up for worker in self._workers)

    async def _take(self) -> _Worker | None:
        """A worker with a place; None: there was none in time, or never will be."""
        try:
            async with asyncio.timeout(_WAIT_S):
                while not self._hopeless:
                    free = [worker for worker in self._workers if worker.ready and worker.running < CAPACITY]
                    if free:
                        chosen = min(free, key=lambda worker: worker.running)
                        chosen.running += 1
                        return chosen
                    await self._changed.wait()
        except TimeoutError:
            pass
        return None

    async def _watch(self, worker: _Worker) -> None:
        """Waits for a worker, and again whenever its process has died, which Ray starts again. Gives it up if Ray
        does, or if its loop can't be opened."""
        from ray.exceptions import RayError

        while True:
            try:
                async with asyncio.timeout(_START_WITHIN_S):
                    self._facts = await _facts_of(worker.actor)
            except (RayError, TimeoutError) as error:
                worker.given_up = True
                self._left(worker, ray_sentence(error))
                return
            worker.ready = True
            worker.lives += 1
            self._tell()
            await worker.lost.wait()
            worker.lost.clear()

    def _left(self, worker: _Worker, why: str) -> None:
        """Marks a worker as lost: it takes no trajectories now."""
        self._why, worker.ready = why, False
        _LOG.warning("worker %d of the rollouts was lost: %s", worker.number, why)
        self._tell()

    def _tell(self) -> None:
        """Wakes the tasks that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _masked(self, task: Task, index: int, seed: int | None, attempt: int, why: str) -> TrajectoryResult:
        """Result of a trajectory whose worker is gone: its prompt, and that the service failed."""
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


async def _facts_of(actor: Any) -> LoopInfo:
    """Facts about a worker's loop, once it is open. Raises RayError if it can't be opened, or if Ray has given the
    worker up."""
    from ray.exceptions import ActorUnavailableError, RayTaskError

    failed = 0
    while True:
        try:
            facts: LoopInfo = await actor.facts.remote()
        except ActorUnavailableError:
            pass  # it died, and is started again
        except RayTaskError:
            failed += 1
            if failed == _OPENINGS:
                raise
        else:
            return facts
        await asyncio.sleep(_PAUSE_S)


async def _end(actor: Any) -> None:
    """Lets a worker close what it holds, and ends it."""
    import ray

    with contextlib.suppress(Exception):  # the boundary to a process that may be gone: it is killed below
        async with asyncio.timeout(_STOP_WITHIN_S):
            await actor.stop.remote()
    ray.kill(actor)
