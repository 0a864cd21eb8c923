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

from executor_service import ExecutionResult, InputFile, Limits
from rollout.data.records import DataError
from rollout.envs.harbor.folder import read_files
from rollout.envs.harbor.task_file import DEFAULT_TEST_S
from rollout.envs.harbor.verdict import PROGRAM, RETURN_BYTES, RETURN_PATHS, nothing, output, verdict
from rollout.tools.base import InfraError
from rollout.tools.code.client import Slot
from rollout.tools.code.graded import GradedShell, UngradableError

_LOG = logging.getLogger("fairbox.rollout")


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
