"""The tool bash of a task folder: the model's shell in the task's image, and the task's tests when it has ended.

    await shell.create("t", image="task", tests=TaskTests("/tasks/task"))
    await shell.execute("t", {"command": "make"})
    await shell.calc_reward("t")  # {"reward": 1.0, "no_reward": 0.0, "timed_out": 0.0}

Invariants: tests run in a sandbox of their own, in an image of the files that the trajectory left, so no process of the
trajectory sees them or lives beside them; what the model could cause (files that can't be kept, an image in which no
bash starts, tests that hang) is worth 0, what it couldn't is an InfraError. Nothing of the tests reaches the model.
A model that is root of its image can replace the programs that the tests run: nothing here protects from that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executor_service import ExecutionResult, ExecutorClient, InputFile, Limits
from rollout.data.records import DataError
from rollout.envs.harbor.folder import HarborTask, read_files
from rollout.envs.harbor.task_file import DEFAULT_TEST_S
from rollout.envs.harbor.verdict import PROGRAM, RETURN_BYTES, RETURN_PATHS, REWARD, nothing, output, verdict
from rollout.tools.base import InfraError
from rollout.tools.code.client import Slot
from rollout.tools.code.graded import GradedShell, UngradableError

_LOG = logging.getLogger("fairbox.rollout")
_SOLVE = "rm -rf /solution && mkdir /solution && cp -R /sandbox/solution/. /solution/ && bash /solution/solve.sh"


@dataclass(frozen=True, slots=True)
class TaskTests:
    """The tests of a task."""

    folder: str
    """The task's folder; the tests are in `tests` below it."""
    timeout_s: float = DEFAULT_TEST_S
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, beside those of the image and of the task."""


def test_options(
    tests: TaskTests, files: Sequence[InputFile], *, image: str, env: Mapping[str, str], memory_bytes: int
) -> dict[str, Any]:
    """Arguments of `ExecutorClient.execute`, beside PROGRAM, that run these tests in an image. `env`: variables of the
    task; `memory_bytes` 0: the executor's own limit."""
    limits = Limits(wall_time_s=tests.timeout_s, memory_bytes=memory_bytes, return_bytes=RETURN_BYTES)
    return {
        "language": "bash",
        "image": image,
        "user": "root",
        "env": {**env, **tests.env},
        "files": files,
        "return_paths": RETURN_PATHS,
        "limits": limits,
    }


class TaskShell(GradedShell[TaskTests]):
    """`async with TaskShell(TaskShellConfig(), executor=..., limiter=...) as shell`. The targets are `host:port`."""

    tests_type = TaskTests

    async def _grade(self, trajectory_id: str, tests: TaskTests) -> Mapping[str, float]:
        try:
            files = await asyncio.to_thread(read_files, Path(tests.folder), "tests")
        except DataError as error:
            raise InfraError(f"the task's tests can't be read: {error}") from error

        async def run(slot: Slot) -> ExecutionResult:
            # Here, so that no more of them wait for their tests than may run at once.
            image, found = await self._kept(trajectory_id), self._sessions().surroundings(trajectory_id)
            memory_bytes = self._sessions().memory_bytes(trajectory_id)
            options = test_options(tests, files, image=image or found.image, env=found.env, memory_bytes=memory_bytes)
            return await self._run_program(slot, PROGRAM, tests.timeout_s, left=image is not None, **options)

        try:
            result = await self._in_slot(run)
        except UngradableError as error:
            _LOG.info("trajectory %s is worth 0: %s", trajectory_id, error)
            return nothing()
        numbers = verdict(result)
        _LOG.debug("trajectory %s has %s, and its tests: %s", trajectory_id, numbers, output(result))
        return numbers


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """Worth of a task's own solution and of its untouched image."""

    name: str
    nothing: float
    solution: float | None
    """None: the task has none."""
    said: str
    """End of what the solution, if it failed, and the tests after it printed."""

    @property
    def sound(self) -> bool:
        """Says whether the solution is worth 1 and nothing is worth no more than 0."""
        return self.nothing <= 0 and self.solution in (None, 1.0)


async def check_task(executor: ExecutorClient, task: HarborTask, tests: TaskTests, image: str) -> TaskCheck:
    """Plays the solution of a task, and nothing, to find out whether its tests tell one from the other.
    They run as they do for a trajectory. Raises DataError and ExecutorError."""
    files, solution = read_files(task.folder, "tests"), read_files(task.folder, "solution")
    memory_bytes = (task.memory_mb or 0) << 20

    async def graded(image: str) -> tuple[float, str]:
        options = test_options(tests, files, image=image, env=task.env, memory_bytes=memory_bytes)
        result = await executor.execute(PROGRAM, **options)
        return verdict(result)[REWARD], output(result)

    untouched, said = await graded(image)
    if not any(file.path == "solution/solve.sh" for file in solution):
        return TaskCheck(task.name, untouched, None, said)
    solved, complaint = await _solved(executor, task, solution, image)
    worth, said = await graded(solved)
    return TaskCheck(task.name, untouched, worth, "\n".join(filter(None, (complaint, said))))


async def _solved(executor: ExecutorClient, task: HarborTask, solution: list[InputFile], image: str) -> tuple[str, str]:
    """(image in which the solution was played, what it printed if it failed)"""
    limits = Limits(memory_bytes=(task.memory_mb or 0) << 20)
    env = {**task.env, **task.solution_env}
    async with executor.session(language="bash", image=image, user="root", env=env, limits=limits) as session:
        result = await session.run(_SOLVE, files=solution, timeout=task.test_s)
        failed = "" if result.exit_code == 0 else f"{result.stdout.text}{result.stderr.text}"[-2000:].strip()
        return (await session.snapshot()).image, failed
