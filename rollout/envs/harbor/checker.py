"""Plays a task folder without a model: its own solution, nothing, or a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from executor_service import ExecutorClient, InputFile, InvalidRequest
from rollout.envs.checker import Grade, LeftFiles, ShellChecker
from rollout.envs.harbor.folder import HarborTask, read_files
from rollout.envs.harbor.shell import TaskTests, test_options
from rollout.envs.harbor.verdict import PROGRAM, REWARD, output, verdict

_SOLVE = "rm -rf /solution && mkdir /solution && cp -R /sandbox/solution/. /solution/ && bash /solution/solve.sh"


class HarborChecker(ShellChecker):
    """A task of a folder. DataError where its files can't be read."""

    def __init__(
        self, executor: ExecutorClient, task: HarborTask, tests: TaskTests, image: str, memory_bytes: int
    ) -> None:
        super().__init__(executor, image, task.env, memory_bytes)
        self.name = task.name
        self.test_s = tests.timeout_s
        self._task = task
        self._tests = tests
        self._files = read_files(task.folder, "tests")
        self._solution = read_files(task.folder, "solution")

    async def nothing(self) -> Grade:
        return await self._graded(self.image)

    async def solution(self) -> Grade | None:
        """It is played as root, whoever the image is for."""
        if not any(file.path == "solution/solve.sh" for file in self._solution):
            return None
        env = {**self.env, **self._task.solution_env}
        left = await self.left(_SOLVE, seconds=self._task.test_s, files=self._solution, user="root", env=env)
        grade = await self._graded_of(left)
        complaint = left.said if left.exit_code else ""
        return replace(grade, said="\n".join(filter(None, (complaint, grade.said))))

    async def played(self, answer: str) -> Grade:
        return await self._graded_of(await self.left(answer))

    def hidden(self) -> Sequence[InputFile]:
        return [*self._files, *self._solution]

    async def _graded_of(self, left: LeftFiles) -> Grade:
        if left.image is None:
            return Grade(0.0, left.said)
        try:
            return await self._graded(left.image)
        except InvalidRequest as error:  # bash or the image's folder is no more
            return Grade(0.0, str(error))

    async def _graded(self, image: str) -> Grade:
        options = test_options(self._tests, self._files, image=image, env=self.env, memory_bytes=self.memory_bytes)
        result = await self.ran(PROGRAM, **options)
        return Grade(verdict(result)[REWARD], output(result), test_s=result.wall_time_s)
