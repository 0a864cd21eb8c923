"""Base of environments: they turn data into tasks and trajectories into rewards. They play nothing themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from executor_service import ExecutorClient
from rollout.envs.checker import TaskChecker
from rollout.loop import Task, TrajectoryResult
from rollout.rewards import Composition
from rollout.rewards.base import Reward, RewardServices, Sample
from rollout.tools.registry import ToolSpec


@dataclass(frozen=True, slots=True)
class EnvironmentSetup:
    """Arguments that a run passes to its environment, beside the environment's own settings."""

    data: Path | None = None
    """The run's `data`; None: the environment's built-in tasks, or an error if it has none."""
    limit: int | None = None
    """Tasks from the beginning of the data; None: all."""
    reward: Composition | None = None
    """The run's `reward`; None: the environment's own."""
    tools: tuple[ToolSpec, ...] | None = None
    """Tools of the run's file of tools; None: the environment's."""
    max_turns: int | None = None
    """Turns that a trajectory may have, for prompts that say so; None: no limit."""
    max_parallel_calls: int = 5
    """Tool calls of one turn that run at once."""


class Environment(ABC):
    """Tasks and their rewards. A subclass sets `reward`, or has a `score` of its own."""

    reward: Composition
    """The worth of a trajectory: the run's, else the environment's own."""
    services: RewardServices = RewardServices()
    """Services that scoring may use; the run sets them once, before the first score."""

    @abstractmethod
    def tasks(self) -> Sequence[Task]:
        """One for each problem."""

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        """The reward of a trajectory that is not masked. It has no effect outside of itself: the run calls it again if
        a service failed it. Raises NotScored if there is no reward to be had."""
        return await self.reward.score(Sample.of(task, result), self.services)

    def tools(self) -> tuple[ToolSpec, ...] | None:
        """Tools of the run, if it names none in a file. Empty: no tools at all. None: the run's own after all."""
        return None

    def checker(self, task: Task, executor: ExecutorClient) -> TaskChecker:
        """Plays a task without a model, so that `fairbox check-env` can check it. It may read files."""
        raise NotImplementedError

    def workspace_roots(self) -> tuple[Path, ...]:
        """Absolute folders with the repositories of its tasks. With `up` the executor takes repositories from below
        them; one that runs already has roots of its own."""
        return ()
