"""Interface of environments: they turn data into tasks and trajectories into rewards. They play nothing themselves.

Optional methods, which the run looks for:

- `tools() -> tuple[ToolSpec, ...]`: the tools that its tasks need, if the run names none;
- `use(services: RewardServices) -> None`: called once before the first score, with what scoring may use;
- `workspace_roots() -> tuple[Path, ...]`: folders with the repositories of its tasks, for an executor that it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from rollout.loop import Task, TrajectoryResult
from rollout.rewards import Composition
from rollout.rewards.base import Reward, RewardServices
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


class Environment(Protocol):
    """Tasks and their rewards."""

    def tasks(self) -> Sequence[Task]: ...

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        """The reward of a trajectory that is not masked. It has no effect outside of itself: the run calls it again if
        a service failed it. Raises NotScored if there is no reward to be had."""
        ...


@runtime_checkable
class EnvironmentWithTools(Protocol):
    """An environment whose tasks need certain tools."""

    def tools(self) -> tuple[ToolSpec, ...] | None:
        """Tools of the run, if it names none in a file. Empty: no tools at all. None: the run's own after all."""
        ...


@runtime_checkable
class EnvironmentWithServices(Protocol):
    """An environment whose scores use services."""

    def use(self, services: RewardServices) -> None:
        """Takes the services; the run calls it once, when they are there."""
        ...


@runtime_checkable
class EnvironmentWithWorkspaces(Protocol):
    """An environment whose tasks have workspaces that are made of local repositories."""

    def workspace_roots(self) -> tuple[Path, ...]:
        """Absolute folders. With `up` the executor takes repositories from below them; one that runs already has roots
        of its own."""
        ...
