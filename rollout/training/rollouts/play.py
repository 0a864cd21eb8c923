"""Plays the tasks of a group or of an evaluation, and dumps what ends.

Invariant: a group's trajectories have indices and seeds that follow from its number, so that it is the same group when
it is played again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from executor_service import Cause
from fairbox.net.serving import until_stopped
from rollout.dump import DumpError, DumpWriter, record_of
from rollout.engines.base import derived_seed
from rollout.envs.base import Environment
from rollout.loop.groups import Schedule
from rollout.loop.limits import StopReason
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import Loop, RolloutRunner
from rollout.loop.state import RequestState
from rollout.loop.task import Task
from rollout.training.config import TrainConfig
from rollout.training.rollouts.lives import RunLives, sampled_versions
from rollout.training.rollouts.loops import TrainingLoop


@dataclass(frozen=True, slots=True)
class _RunLoop:
    """A loop whose trajectories are counted over the whole run, and that tells when one has ended: not when it has
    failed and is to be run again.

    A trajectory fails by the service if other weights than the run's sampled of it: a server that was started again
    has those that it was first started with, until it is given others."""

    loop: Loop
    lives: RunLives
    first: int
    retries: int
    ended: Callable[[], None]

    async def run(self, task: Task, *, index: int, seed: int | None, attempt: int = 1) -> TrajectoryResult:
        again = False
        try:
            played = await self.loop.run(task, index=self.first + index, seed=seed, attempt=attempt)
            result = _of_the_run(played, self.lives)
            again = result.masked and attempt <= self.retries
            return result
        finally:
            if not again:
                self.ended()


def _of_the_run(result: TrajectoryResult, lives: RunLives) -> TrajectoryResult:
    other = next((version for version in sampled_versions(result) if not lives.descends_from(version)), None)
    if result.masked or other is None:
        return result
    return replace(
        result,
        state=RequestState.FAILED,
        stop_reason=StopReason.INFRA,
        cause=Cause.INFRA,
        error=f"weights {other!r} sampled, which are none of this run's: a server was started again",
    )


def stream_task(number: int, *, tasks: int, seed: int) -> int:
    """Index of the task that is taken as `number` (from 0): each pass has an order of its own and leaves none out."""
    epoch, place = divmod(number, tasks)
    return _order(epoch, tasks, seed)[place]


@lru_cache(maxsize=4)  # a run asks one by one, at the end of a pass for those of two passes
def _order(epoch: int, tasks: int, seed: int) -> tuple[int, ...]:
    order = list(range(tasks))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311 - an order, not a secret
    return tuple(order)


def make_runner(
    config: TrainConfig,
    loop: TrainingLoop,
    environment: Environment,
    sink: Callable[[TrajectoryResult, Task], None],
    schedule: Schedule,
    *,
    number: int,
    first: int = 0,
    ended: Callable[[], None] = lambda: None,
    slots: asyncio.Semaphore | None = None,
    temperature: float | None = None,
) -> RolloutRunner:
    """Plays the group or evaluation `number`, whose trajectories have indices from `first`, and calls `ended` for each
    that was played, kept or not, when it has ended. `temperature` is that of an evaluation."""
    retries = config.infra_retries
    return RolloutRunner(
        _RunLoop(loop if temperature is None else loop.at(temperature), loop.lives, first, retries, ended),
        loop.score(environment),
        sink,
        schedule=schedule,
        retries=retries,
        seed=derived_seed(config.sampling.seed, "play", number),
        score_timeout_s=config.score_timeout_s,
        slots=slots,
    )


async def play(
    config: TrainConfig,
    loop: TrainingLoop,
    environment: Environment,
    stop: asyncio.Event,
    *,
    step: int,
    folder: Path,
) -> list[TrajectoryResult] | None:
    """Plays one trajectory of each task of an evaluation, in order, dumped into `folder` as they end; None if `stop` is
    set before. Raises DumpError."""
    results: list[TrajectoryResult] = []
    with DumpWriter(folder, step) as dump:

        def sink(result: TrajectoryResult, task: Task) -> None:
            dump_into(dump, loop, result, task, step=step)
            results.append(result)

        schedule = Schedule(concurrency=config.concurrency, samples_per_prompt=1)
        temperature = config.eval_temperature
        runner = make_runner(config, loop, environment, sink, schedule, number=step, temperature=temperature)
        try:
            if not await until_stopped(stop, runner.run(environment.tasks())):
                return None
        except ExceptionGroup as group:
            ours, others = group.split(DumpError)
            if ours is None or others is not None:
                raise
            raise ours.exceptions[0] from None
    await loop.drop(result.trajectory_id for result in results)
    return sorted(results, key=lambda result: result.index)


def dump_into(dump: DumpWriter, loop: TrainingLoop, result: TrajectoryResult, task: Task, *, step: int) -> None:
    """Writes one line. Raises DumpError."""
    dump.write(record_of(result, task, step=step, model=loop.engine.model_name, decode=loop.decode))
