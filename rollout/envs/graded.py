"""The common part of environments whose tool, a shell, runs a task's tests when its trajectory has ended.

Invariants: a run that names tools of its own has that shell among them, under the name that rewards are taken from; a
trajectory is scored by its tests alone, unless the run has a reward.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from executor_service import Cause
from fairbox.errors import ConfigError
from rollout.envs.base import Environment, EnvironmentSetup
from rollout.loop.results import TrajectoryResult
from rollout.loop.task import Task
from rollout.rewards import NotScored, Reward, Sample
from rollout.tools.code.graded import GradedShell, TaskShellConfig
from rollout.tools.registry import ToolSpec

REWARD = "reward"
"""The number, of those that tests give, that a trajectory is worth."""
SHELL = GradedShell.default_schema.name


class GradedEnvironment(Environment):
    """A subclass says which shell, and what the data make. Raises ConfigError without data, and for tools without that
    shell."""

    shell_type: ClassVar[type[GradedShell[Any]]]

    def __init__(self, name: str, bash: TaskShellConfig, setup: EnvironmentSetup) -> None:
        """`bash`: settings of the shell, which are `env_config.bash`."""
        if setup.data is None:
            raise ConfigError(f"data is none, but env={name} has no built-in tasks: name the file or folder of them")
        if setup.tools is not None and not any(map(self._is_shell, setup.tools)):
            shell = f"{self.shell_type.__module__.rpartition('.')[0]}.{self.shell_type.__name__}"
            raise ConfigError(f"the run's tools have no {shell}, which runs the tests: add it")
        self._bash = bash
        self._reward = setup.reward
        self._tasks = self._read(setup.data, setup.limit)

    @abstractmethod
    def _read(self, data: Path, limit: int | None) -> list[Task]:
        """The first `limit` tasks of the data. Raises DataError."""

    def tools(self) -> tuple[ToolSpec, ...]:
        """The shell of the tasks."""
        return (ToolSpec("env_config.bash", self.shell_type, self._bash),)

    def tasks(self) -> Sequence[Task]:
        """The tasks, in the order of the data."""
        return list(self._tasks)

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        """Reward of the run, else what the tests gave: `reward`, and all their numbers as parts. Raises NotScored."""
        if self._reward is not None:
            return await self._reward.score(Sample.of(task, result), self.services)
        prefix = f"{SHELL}/"
        parts = {name.removeprefix(prefix): n for name, n in result.tool_rewards.items() if name.startswith(prefix)}
        if REWARD not in parts:
            raise NotScored(Cause.INFRA, f"{task.where}: no tool {SHELL} has run the tests")
        return Reward(parts[REWARD], parts)

    def _is_shell(self, spec: ToolSpec) -> bool:
        named = spec.schema is None or spec.schema.name == SHELL
        return named and isinstance(spec.kind, type) and issubclass(spec.kind, self.shell_type)
