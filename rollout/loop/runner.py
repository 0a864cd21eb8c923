"""Runs many trajectories at once and hands over each as it ends.

Invariants: at most `concurrency` run; no failure of one reaches another; a trajectory that failed by the service is
run again from its prompt, with a new id, within its own and the run's budget, and is else handed over masked. Running
it again is safe because nothing of the failed attempt was handed over, and programs leave nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from executor_service import Cause
from fairbox.errors import ConfigError
from rollout.loop.agent_loop import AgentLoop, turn_seed
from rollout.loop.results import TrajectoryResult
from rollout.loop.task import Task
from rollout.rewards.base import Reward

__all__ = ["RetryBudget", "RolloutRunner", "RunnerStatistics"]

_LOG = logging.getLogger("fairbox.rollout")
_RETRY_AFTER_S = 0.5
"""Lets a service that is being restarted come back; doubled with each attempt."""


@dataclass(slots=True)
class RetryBudget:
    """How often failed trajectories are run again: `per_trajectory`, and `total` over the run, which ends retries
    when the service is down rather than stumbling."""

    per_trajectory: int
    total: int

    def take(self, attempt: int) -> bool:
        """Whether a trajectory whose `attempt`-th attempt failed is run again; takes one from the total if so."""
        if attempt > self.per_trajectory or self.total <= 0:
            return False
        self.total -= 1
        return True


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    """Where a run is."""

    planned: int
    running: int
    finished: int
    masked: int
    retried: int


@dataclass(frozen=True, slots=True)
class _Plan:
    index: int
    task: Task


class RolloutRunner:
    """`samples_per_prompt` trajectories of each task. `sink` is called once for each, as they end.

    `score` is called for those that are not masked.
    """

    def __init__(
        self,
        loop: AgentLoop,
        score: Callable[[Task, TrajectoryResult], Reward],
        sink: Callable[[TrajectoryResult, Task], None],
        *,
        concurrency: int,
        retries: RetryBudget,
        samples_per_prompt: int = 1,
        seed: int | None = None,
    ) -> None:
        if concurrency < 1 or samples_per_prompt < 1:
            raise ConfigError(
                f"concurrency is {concurrency} and samples_per_prompt is {samples_per_prompt}, both must be at least 1"
            )
        self._loop = loop
        self._score = score
        self._sink = sink
        self._concurrency = concurrency
        self._retries = retries
        self._samples = samples_per_prompt
        self._seed = seed
        self._planned = self._running = self._finished = self._masked = self._retried = 0

    def statistics(self) -> RunnerStatistics:
        return RunnerStatistics(self._planned, self._running, self._finished, self._masked, self._retried)

    async def run(self, tasks: Sequence[Task]) -> None:
        """Runs everything. Cancelling it cancels what runs; what has ended has been handed over."""
        each = [task for task in tasks for _ in range(self._samples)]
        plans = [_Plan(index, task) for index, task in enumerate(each)]
        self._planned += len(plans)
        queue = iter(plans)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._concurrency, len(plans))):
                group.create_task(self._work(queue))

    async def _work(self, queue: Iterator[_Plan]) -> None:
        for plan in queue:
            self._running += 1
            try:
                result = await self._attempts(plan)
            finally:
                self._running -= 1
            result = self._scored(plan.task, result)
            self._finished += 1
            self._masked += result.masked
            self._sink(result, plan.task)

    def _scored(self, task: Task, result: TrajectoryResult) -> TrajectoryResult:
        if result.masked:
            return result
        try:
            return replace(result, reward=self._score(task, result))
        except Exception as error:  # the boundary of a trajectory: a grader that breaks is not the model's wrong answer
            _LOG.exception("trajectory %s of %s could not be scored", result.trajectory_id, task.where)
            return replace(result, cause=Cause.INFRA, error=f"scoring: {type(error).__name__}: {error}")

    async def _attempts(self, plan: _Plan) -> TrajectoryResult:
        seed = turn_seed(self._seed, plan.index)
        attempt = 1
        while True:
            result = await self._loop.run(plan.task, index=plan.index, seed=seed, attempt=attempt)
            if not result.masked or not self._retries.take(attempt):
                return result
            self._retried += 1
            await asyncio.sleep(_RETRY_AFTER_S * 2 ** (attempt - 1))
            attempt += 1
