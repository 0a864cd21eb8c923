"""Tasks of task folders: an instruction and a shell in; what the task's own tests say of the image out.

A task is a folder in Harbor's format, its image one that the executor has. The prompt is `instruction.md` as it is.
Invariants: a task that can't be played as it is meant is an error before anything starts, or is left out by name; no
prompt and no tool shows tests or solution; a trajectory is scored by its tests alone, unless the run has a reward.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor_service import ExecutorClient
from fairbox.config import check, setting
from fairbox.errors import ConfigError
from rollout.envs.base import EnvironmentSetup
from rollout.envs.graded import GradedEnvironment
from rollout.envs.harbor.checker import HarborChecker
from rollout.envs.harbor.folder import HarborTask, read_tasks
from rollout.envs.harbor.shell import TaskShell, TaskTests
from rollout.envs.harbor.task_file import DEFAULT_TEST_S
from rollout.envs.registry import environment
from rollout.loop.task import Task
from rollout.tokens.tokenizer import Message
from rollout.tools.code.graded import TaskShellConfig
from rollout.tools.code.settings import LONGEST_S

DATA_SOURCE = "harbor"
_BASH = TaskShell.default_schema.name


@dataclass(frozen=True)
class HarborConfig:
    """Settings of the environment harbor: the images of its tasks, their tests, and its tool."""

    image: str | None = setting(
        None,
        help="Name of each task's image at the executor, {name} being the task's folder: harbor/{name}; none: the "
        "task's docker_image, else the name of its folder.",
    )
    leave_out: bool = setting(
        False, help="Leave out, and log, tasks that need what there is not: services, networks, steps; false: an error."
    )
    system: str | None = setting(None, help="System message before the instruction; none: there is none.")
    test_timeout: float = setting(
        DEFAULT_TEST_S,
        above=0,
        most=LONGEST_S,
        help="Most seconds for a task's tests, if its own limit is longer; at most max_limits.wall_time_s of the "
        "executor.",
    )
    bash: TaskShellConfig = setting(factory=TaskShellConfig, help="The tool bash.")

    def validate(self) -> None:
        """Raises ConfigError for what types can't say."""
        check(self, "env_config")
        _check_image(self.image)
        self.bash.validate("env_config.bash")


def _check_image(template: str | None) -> None:
    if template is not None and (not template or re.search(r"[{}]", template.replace("{name}", ""))):
        raise ConfigError(f"env_config.image is {template!r}, must be a name, in which braces are {{name}} alone")


@environment("harbor", HarborConfig)
class HarborEnvironment(GradedEnvironment):
    """Tasks of task folders, by name, each with its image and its tests. Raises ConfigError and DataError."""

    shell_type = TaskShell

    def __init__(self, config: HarborConfig, setup: EnvironmentSetup) -> None:
        self._config = config
        super().__init__("harbor", config.bash, setup)

    def _read(self, data: Path, limit: int | None) -> list[Task]:
        found = read_tasks(data, limit, leave_out=self._config.leave_out)
        self._folders = {task.name: task for task in found}
        return [self._task(task) for task in found]

    def checker(self, task: Task, executor: ExecutorClient) -> HarborChecker:
        options, found = task.tools_kwargs[_BASH], self._folders[task.uid]
        memory_bytes = self._bash.memory_limit_bytes or (found.memory_mb or 0) << 20
        return HarborChecker(executor, found, options["tests"], options["image"], memory_bytes)

    def _task(self, task: HarborTask) -> Task:
        return Task(
            uid=task.name,
            messages=(*self._system(), {"role": "user", "content": task.instruction}),
            ground_truth="",
            data_source=DATA_SOURCE,
            where=str(task.folder),
            tools_kwargs={_BASH: task_options(task, self._config)},
            row={"task": task.name},
        )

    def _system(self) -> tuple[Message, ...]:
        return () if self._config.system is None else ({"role": "system", "content": self._config.system},)


def task_options(task: HarborTask, config: HarborConfig) -> dict[str, Any]:
    """Options of TaskShell for a task."""
    template = config.image
    return {
        "image": template.replace("{name}", task.name) if template else task.docker_image or task.name,
        "env": dict(task.env),
        "memory_mb": task.memory_mb,
        "tests": TaskTests(str(task.folder), min(task.test_s, config.test_timeout), dict(task.test_env)),
    }
