"""Programming problems: a question in, a program out, which an executor grades.

Rows of all kinds that `rollout.data.code` reads; each names the reward function that its tests are for. Invariant: no
prompt and no tool sees the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from executor_service import ExecutorClient
from fairbox.config import setting
from fairbox.errors import ConfigError
from rollout.data.code import CodeProblem, ask_of, needs_python, read_code_problems
from rollout.envs.base import Environment, EnvironmentSetup
from rollout.envs.code_checker import ProgramChecker
from rollout.envs.registry import environment
from rollout.loop.results import TrajectoryResult
from rollout.loop.task import Task
from rollout.rewards import Composition, Reward, Sample, parse_rewards
from rollout.tools.registry import ToolSpec

REWARD_COLUMN = "reward"
"""Column of `Task.row` with the name of the reward function that the row's tests are for."""


@dataclass(frozen=True)
class CodeConfig:
    """Settings of the environment code."""

    interpreter: bool = setting(True, help="Give the model the run's tools, to try its program; false: none.")
    language: str = setting("python", help="Language of the programs, as the executor has it: cpp, java, go ...")


@environment("code", CodeConfig)
class CodeEnvironment(Environment):
    """Tasks of programming problems. The reward is the run's, or that of the row's kind: 1 if all its tests pass.

    Raises ConfigError and DataError.
    """

    def __init__(self, config: CodeConfig, setup: EnvironmentSetup) -> None:
        if setup.data is None:
            raise ConfigError("data is none, but programming problems have no built-in tasks: name a file of rows")
        self._config = config
        self._problems = read_code_problems(setup.data, setup.limit)
        if config.language != "python" and (other := next(filter(needs_python, self._problems), None)):
            raise ConfigError(f"env_config.language is {config.language!r}, but the tests of {other.where} call Python")
        kinds = sorted({problem.reward for problem in self._problems})
        self._rewards: dict[str, Composition] = {kind: setup.reward or self._default(kind) for kind in kinds}

    def checker(self, task: Task, executor: ExecutorClient) -> ProgramChecker:
        """Plays a task's own solution, or any program."""
        problem = self._problems[int(task.uid.partition("-")[0])]
        return ProgramChecker(executor, problem, task, self._rewards[problem.reward], self._config.language)

    def tools(self) -> tuple[ToolSpec, ...] | None:
        """None: the run's own."""
        return None if self._config.interpreter else ()

    def tasks(self) -> Sequence[Task]:
        """One task per row, in their order."""
        return [self._task(problem, number) for number, problem in enumerate(self._problems)]

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        """Reward of the last turn's program by the task's tests. Raises NotScored."""
        return await self._rewards[task.row[REWARD_COLUMN]].score(Sample.of(task, result), self.services)

    def _default(self, kind: str) -> Composition:
        language = self._config.language
        return parse_rewards([{"fn": kind, "args": {} if language == "python" else {"language": language}}])

    def _task(self, problem: CodeProblem, number: int) -> Task:
        return Task(
            uid=f"{number}-{problem.uid}",
            messages=(
                {"role": "user", "content": f"{problem.question.strip()}\n\n{ask_of(problem, self._config.language)}"},
            ),
            ground_truth=problem.ground_truth,
            data_source=problem.data_source,
            where=problem.where,
            row={REWARD_COLUMN: problem.reward},
        )
