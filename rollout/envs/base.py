"""What an environment is: it turns data into tasks and trajectories into rewards. It runs nothing itself."""

from __future__ import annotations

from typing import Protocol

from rollout.loop import Task, TrajectoryResult
from rollout.rewards.base import Reward

__all__ = ["Environment"]


class Environment(Protocol):
    """Tasks and their rewards."""

    def tasks(self) -> list[Task]: ...

    def score(self, task: Task, result: TrajectoryResult) -> Reward:
        """The reward of a trajectory that is not masked."""
        ...
