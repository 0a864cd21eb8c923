"""Plays a programming problem without a model: its own solution, no answer, or a program."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable

from executor_service import Cause, ExecutorClient
from rollout.data.code import CodeProblem
from rollout.envs.checker import AnswerChecker, CheckFailed, Grade
from rollout.loop.task import Task
from rollout.rewards import Composition, NotScored, RewardServices, Sample
from rollout.rewards.code.grading import Grading

_FENCE = "`" * 3
_LONGEST = "longest_s"
_SAID = ("passed", "wrong", "failed", "time_limit", "not_compiled")
"""Parts of the reward that say how a program ended."""


class ProgramChecker(AnswerChecker):
    """A problem. Its methods raise CheckFailed where its tests can't be used."""

    def __init__(
        self, executor: ExecutorClient, problem: CodeProblem, task: Task, reward: Composition, language: str
    ) -> None:
        self.name = problem.uid
        self.language = language
        self.test_s = Grading().wall_time_s
        self.names = tuple(dict.fromkeys(_defined(problem)))
        self._services = RewardServices(executor)
        self._problem = problem
        self._task = task
        self._reward = reward

    async def nothing(self) -> Grade:
        return await self._graded("")

    async def solution(self) -> Grade | None:
        if not self._problem.solution or self.language != "python":
            return None
        return await self.played(self._problem.solution)

    async def played(self, answer: str) -> Grade:
        return await self._graded(f"{_FENCE}{self.language}\n{answer}\n{_FENCE}")

    async def _graded(self, text: str) -> Grade:
        task = self._task
        sample = Sample(text, task.ground_truth, data_source=task.data_source, row=task.row)
        try:
            reward = await self._reward.score(sample, self._services)
        except NotScored as error:
            raise CheckFailed(str(error) if error.cause is Cause.TASK else f"the service failed: {error}") from None
        parts = {name.rpartition("/")[2]: value for name, value in reward.parts.items()}
        said = ", ".join(f"{name} {parts[name]:.0%}" for name in _SAID if parts.get(name))
        return Grade(reward.value, f"{said} of {parts.get('cases', 0):.0f} cases", test_s=parts.get(_LONGEST, 0.0))


def _defined(problem: CodeProblem) -> Iterable[str]:
    """Names that tests may call: of the function that they name, and of all that the solution has."""
    truth = json.loads(problem.ground_truth)
    if isinstance(truth, dict):
        yield from (str(truth[key]) for key in ("fn_name", "entry_point") if truth.get(key))
    try:
        tree = ast.parse(problem.solution)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from (each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef))
