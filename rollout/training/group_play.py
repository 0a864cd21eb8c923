"""Plays single groups, of which several run side by side and share the places of trajectories.

Invariants: at most `concurrency` trajectories of all groups are played or scored; a group's trajectories have indices
and seeds that follow from its number, so that it is the same group when it is played again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rollout.envs.base import Environment
from rollout.loop.agent_loop import AgentLoop
from rollout.loop.groups import RetryBudget, Schedule
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import Loop, RolloutRunner
from rollout.loop.task import Task
from rollout.training.config import TrainConfig
from rollout.training.play import OwnWeights, play_seed

__all__ = ["GroupPlayer"]


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A loop whose trajectories are counted over the whole run, and that tells when one has ended: not when it has
    failed and is to be run again."""

    loop: Loop
    first: int
    retries: RetryBudget
    ended: Callable[[], None]

    async def run(self, task: Task, *, index: int, seed: int | None, attempt: int = 1) -> TrajectoryResult:
        again = False
        try:
            result = await self.loop.run(task, index=self.first + index, seed=seed, attempt=attempt)
            again = result.masked and attempt <= self.retries.per_trajectory and self.retries.total > 0
            return result
        finally:
            if not again:
                self.ended()


class _Places(asyncio.Semaphore):
    """Places of trajectories, and how many are taken."""

    taken = 0

    async def acquire(self) -> Literal[True]:
        got = await super().acquire()
        self.taken += 1
        return got

    def release(self) -> None:
        self.taken -= 1
        super().release()


class GroupPlayer:
    """`player.runner(number, keep, ended).run([task])` plays one group."""

    def __init__(self, config: TrainConfig, loop: AgentLoop, environment: Environment) -> None:
        self._config = config
        self._loop = loop
        self._environment = environment
        self._retries = RetryBudget(config.infra_retries, config.infra_retries_total)
        self._places = _Places(config.concurrency)

    @property
    def each(self) -> int:
        """Trajectories of a group that are begun."""
        return self._config.samples_per_prompt + self._config.extra_samples

    @property
    def playing(self) -> int:
        """Trajectories of all groups that are played or scored."""
        return self._places.taken

    def new_step(self) -> None:
        """Each step has its budget of retries."""
        self._retries.total = self._config.infra_retries_total

    def runner(self, number: int, keep: Callable[[TrajectoryResult], None], ended: Callable[[], None]) -> RolloutRunner:
        """`keep` is called for each trajectory of the group, and `ended` for each that was played, kept or
        not, when it has ended."""
        config = self._config
        return RolloutRunner(
            _Numbered(OwnWeights(self._loop), number * self.each, self._retries, ended),
            self._environment.score,
            lambda result, task: keep(result),
            schedule=Schedule(self.each, config.samples_per_prompt, config.extra_samples),
            retries=self._retries,
            seed=play_seed(config.sampling.seed, number),
            score_timeout_s=config.score_timeout_s,
            slots=self._places,
        )
