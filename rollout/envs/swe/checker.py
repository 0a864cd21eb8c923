"""Plays a row without a model: its own patch, nothing, or a script."""

from __future__ import annotations

import shlex

from executor_service import ExecutionResult, ExecutorClient, InvalidRequest
from rollout.envs.checker import Grade, ShellChecker
from rollout.envs.swe.grading import SuiteGrading, grade, look, take
from rollout.envs.swe.programs import GradingProgram, ImageBase, RepositoryTests
from rollout.envs.swe.rows import SweRow


class RowChecker(ShellChecker):
    """A row. Its methods raise RowMismatch for a row that does not fit its image."""

    def __init__(
        self, executor: ExecutorClient, row: SweRow, tests: RepositoryTests, image: str, memory_bytes: int
    ) -> None:
        super().__init__(executor, image, {}, memory_bytes)
        self.name = row.instance_id
        self.test_s = tests.timeout_s
        self.repository = tests.working_dir
        self._patch = row.patch.encode()
        self._tests = tests
        self._known: ImageBase | None = None

    async def nothing(self) -> Grade:
        return await self._graded(b"", untouched=True)

    async def solution(self) -> Grade | None:
        """Undoes a patch that can't be applied: rows of SWE-smith have the defect as their patch."""
        if not self._patch:
            return None
        found = await self._grading(self._patch)
        if not found.numbers["applied"]:
            undone = await self._grading(self._patch, reverse=True)
            found = undone if undone.numbers["applied"] else found
        return _grade(found)

    async def played(self, answer: str) -> Grade:
        begin = f"cd -- {shlex.quote(self._tests.working_dir)}\n{self._tests.setup or ':'}\n"
        left = await self.left(begin + answer)
        if left.image is None:
            return Grade(0.0, left.said)
        try:
            change = await take(self._run, self._tests, await self._base(), left.image)
        except InvalidRequest as error:  # bash or the image's folder is no more
            return Grade(0.0, str(error))
        return Grade(0.0, change.problem) if change.problem else await self._graded(change.patch)

    async def _graded(self, patch: bytes, **more: bool) -> Grade:
        return _grade(await self._grading(patch, **more))

    async def _grading(self, patch: bytes, **more: bool) -> SuiteGrading:
        return await grade(self._run, self._tests, await self._base(), self.image, patch, **more)

    async def _base(self) -> ImageBase:
        if self._known is None:
            self._known = await look(self._run, self._tests, self.image)
        return self._known

    async def _run(self, program: GradingProgram) -> ExecutionResult:
        return await self.ran(program.code, **program.options(self.env, self.memory_bytes))


def _grade(found: SuiteGrading) -> Grade:
    numbers = found.numbers
    return Grade(numbers["reward"], found.said, found.failed, bool(numbers["canary"]), found.test_s)
