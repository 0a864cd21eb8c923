"""Plays the solution of a task, or nothing, to find out whether its tests tell one from the other.

Invariant: the tests run as they do for a trajectory, in a sandbox of their own and an image of what was left.
"""

from __future__ import annotations

from dataclasses import dataclass

from executor_service import ExecutorClient, InputFile, Limits
from rollout.envs.harbor.folder import HarborTask, read_files
from rollout.envs.harbor.shell import TaskTests, test_options
from rollout.envs.harbor.verdict import PROGRAM, REWARD, output, verdict

_SOLVE = "rm -rf /solution && mkdir /solution && cp -R /sandbox/solution/. /solution/ && bash /solution/solve.sh"


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
    """Grades the image as it is, and with the solution. Raises DataError and ExecutorError."""
    files, solution = read_files(task.folder, "tests"), read_files(task.folder, "solution")
    memory_bytes = (task.memory_mb or 0) << 20

    async def graded(image: str) -> tuple[float, str]:
        options = test_options(tests, files, image=image, env=task.env, memory_bytes=memory_bytes)
        result = await executor.execute(PROGRAM, **options)
        return verdict(result)[REWARD], output(result)

    nothing, said = await graded(image)
    if not any(file.path == "solution/solve.sh" for file in solution):
        return TaskCheck(task.name, nothing, None, said)
    solved, complaint = await _solved(executor, task, solution, image)
    worth, said = await graded(solved)
    return TaskCheck(task.name, nothing, worth, "\n".join(filter(None, (complaint, said))))


async def _solved(executor: ExecutorClient, task: HarborTask, solution: list[InputFile], image: str) -> tuple[str, str]:
    """(image in which the solution was played, what it printed if it failed)"""
    limits = Limits(memory_bytes=(task.memory_mb or 0) << 20)
    env = {**task.env, **task.solution_env}
    async with executor.session(language="bash", image=image, user="root", env=env, limits=limits) as session:
        result = await session.run(_SOLVE, files=solution, timeout=task.test_s)
        failed = "" if result.exit_code == 0 else f"{result.stdout.text}{result.stderr.text}"[-2000:].strip()
        return (await session.snapshot()).image, failed
