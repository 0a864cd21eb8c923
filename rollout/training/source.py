"""Where a trainer's trajectories come from, and the synchronous form of it, which plays a step's problems when they are
asked for. The asynchronous one is `rollout.training.stream`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from fairbox.errors import FairboxError
from fairbox.serving import until_stopped
from rollout.dump import DumpError, DumpWriter, record_of
from rollout.envs.base import Environment
from rollout.loop.agent_loop import AgentLoop
from rollout.loop.groups import RetryBudget, Schedule
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import RolloutRunner
from rollout.loop.task import Task
from rollout.training.config import TrainConfig
from rollout.training.order import play_seed, step_tasks
from rollout.training.own_weights import OwnWeights
from rollout.training.sync import WeightSync

__all__ = ["SourceStatistics", "StepBatch", "StepRollouts", "TrajectorySource", "dump_into", "play", "step_problems"]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """What a step is trained on."""

    results: Sequence[TrajectoryResult]
    """In the order of their indices."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """How they came about."""


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """Where the rollouts of a run are."""

    running: int = 0
    """Groups that are played."""
    waiting: int = 0
    """Groups that have ended, and that no step is trained on yet."""
    trajectories: int = 0
    """That are played or scored now."""
    lost: int = 0
    """Groups that the service failed, all of their trajectories."""


class TrajectorySource(Protocol):
    """`async with source:` around a run; then `batch` and `trained` for each step in turn. Leaving it ends whatever is
    played."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def batch(self, step: int, stop: asyncio.Event) -> StepBatch | None:
        """The trajectories of a step, dumped; None when `stop` came before. Raises FairboxError where there are none
        to be had."""
        ...

    async def trained(self, step: int) -> None:
        """The step was trained on its batch: other weights are to be sampled from now."""
        ...

    def state(self) -> dict[str, Any]:
        """What a run needs to go on behind the last step that was trained on, as plain values."""
        ...

    def statistics(self) -> SourceStatistics: ...


class StepRollouts:
    """Plays a step's problems with the weights of its beginning, and gives the batch when the last one has ended."""

    def __init__(
        self, config: TrainConfig, loop: AgentLoop, environment: Environment, sync: WeightSync, *, out: Path
    ) -> None:
        self._config = config
        self._loop = loop
        self._environment = environment
        self._tasks = step_problems(config, environment)
        self._sync = sync
        self._out = out
        self._runner: RolloutRunner | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def batch(self, step: int, stop: asyncio.Event) -> StepBatch | None:
        """The weights go to the engine before each step, so that its caches hold nothing that a run which goes on from
        a checkpoint would not have."""
        config, began = self._config, time.monotonic()
        await self._sync.push(step - 1)
        numbers = step_tasks(
            step, tasks=len(self._tasks), per_step=config.prompts_per_step, seed=config.sampling.seed or 0
        )
        results = await play(
            config,
            self._loop,
            self._environment,
            [self._tasks[number] for number in numbers],
            stop,
            step=step,
            folder=self._out / "rollouts",
            schedule=config.schedule(),
            started=self._started,
        )
        self._runner = None
        if results is None:
            return None
        if not results:
            within = f"time_limit_s is {config.time_limit_s}"
            raise FairboxError(f"{within}, in which no trajectory of step {step} ended; it must be longer, or none")
        return StepBatch(results, {"time/rollouts_s": time.monotonic() - began})

    def _started(self, runner: RolloutRunner) -> None:
        self._runner = runner

    async def trained(self, step: int) -> None:
        """Nothing is played that could take them."""

    def state(self) -> dict[str, Any]:
        """A step's problems follow from its number."""
        return {}

    def statistics(self) -> SourceStatistics:
        if self._runner is None:
            return SourceStatistics()
        found = self._runner.statistics()
        groups = self._config.prompts_per_step - found.groups
        return SourceStatistics(running=groups, waiting=found.groups, trajectories=found.running)


async def play(
    config: TrainConfig,
    loop: AgentLoop,
    environment: Environment,
    tasks: Sequence[Task],
    stop: asyncio.Event,
    *,
    step: int,
    folder: Path,
    schedule: Schedule,
    started: Callable[[RolloutRunner], None] = lambda runner: None,
) -> list[TrajectoryResult] | None:
    """Every trajectory of the tasks, in order, dumped into `folder` as they end; None when `stop` came before.
    Raises DumpError."""
    results: list[TrajectoryResult] = []
    with DumpWriter(folder, step) as dump:

        def sink(result: TrajectoryResult, task: Task) -> None:
            dump_into(dump, loop, result, task, step=step)
            results.append(result)

        runner = RolloutRunner(
            OwnWeights(loop),
            environment.score,
            sink,
            schedule=schedule,
            retries=RetryBudget(config.infra_retries, config.infra_retries_total),
            seed=play_seed(config.sampling.seed, step),
            score_timeout_s=config.score_timeout_s,
        )
        started(runner)
        try:
            if not await until_stopped(stop, runner.run(tasks)):
                return None
        except ExceptionGroup as group:
            ours, others = group.split(DumpError)
            if ours is None or others is not None:
                raise
            raise ours.exceptions[0] from None
    return sorted(results, key=lambda result: result.index)


def dump_into(dump: DumpWriter, loop: AgentLoop, result: TrajectoryResult, task: Task, *, step: int) -> None:
    """One line. Raises DumpError."""
    dump.write(record_of(result, task, step=step, model=loop.engine.model_name, decode=loop.chat.decode_plain))


def step_problems(config: TrainConfig, environment: Environment) -> list[Task]:
    """The environment's. Raises FairboxError where they are too few for a step."""
    tasks = list(environment.tasks())
    if config.prompts_per_step > len(tasks):
        given = f"prompts_per_step is {config.prompts_per_step}, must be at most {len(tasks)}"
        raise FairboxError(f"{given}, the number of problems")
    return tasks
