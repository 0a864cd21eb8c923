"""What an environment is: it turns data into tasks and trajectories into rewards. It plays nothing itself.

Optional methods, which the run looks for:

- `tools() -> tuple[ToolSpec, ...]`: the tools that its tasks need, where the run names none;
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
    """What a run gives the environment that it names, beside that one's own settings."""

    data: Path | None = None
    """The run's `data`; None: the environment's built-in tasks, or an error where it has none."""
    limit: int | None = None
    """Tasks from the beginning of the data; None: all."""
    reward: Composition | None = None
    """The run's `reward`; None: the environment's own."""
    tools: tuple[ToolSpec, ...] | None = None
    """Those of the run's file of tools; None: the environment's."""
    max_turns: int | None = None
    """Turns that a trajectory may have, for prompts that say so; None: no limit."""
    max_parallel_calls: int = 5
    """Tool calls of one turn that run at once."""


class Environment(Protocol):
    """Tasks and their rewards."""

    def tasks(self) -> Sequence[Task]: ...

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        """The reward of a trajectory that is not masked. It changes nothing outside of itself: it is called again where
        a service failed it. Raises NotScored where there is none to be had."""
        ...


@runtime_checkable
class EnvironmentWithTools(Protocol):
    """One whose tasks need certain tools."""

    def tools(self) -> tuple[ToolSpec, ...] | None:
        """The run's, where it names none in a file. Empty: no tools at all. None: those of the run, after all."""
        ...


@runtime_checkable
class EnvironmentWithServices(Protocol):
    """One whose scores use services."""

    def use(self, services: RewardServices) -> None:
        """Called once, when they are there."""
        ...


@runtime_checkable
class EnvironmentWithWorkspaces(Protocol):
    """One whose tasks have workspaces that are made of local repositories."""

    def workspace_roots(self) -> tuple[Path, ...]:
        """Absolute folders. With `up` the executor takes repositories from below them; one that runs already has roots
        of its own."""
        ...
