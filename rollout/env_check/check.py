"""Checks tasks of an environment: is each fit to train on?

A task's own solution, nothing, and every cheat are played, each in sandboxes of its own, and graded as trajectories
are; in a task's image, an agent's shell looks for what it is not to find. Invariants: at most `parallel` plays run at
once; a task that can't be checked is a finding and ends no other.
"""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from executor_service import ExecutionResult, ExecutorClient, InputFile, Outcome
from fairbox.errors import ConfigError, FairboxError
from fairbox.gathering import all_of
from rollout.env_check.cheats import Cheat, cheats_for
from rollout.env_check.findings import Seen, TaskReport, report_of
from rollout.env_check.programs import programs_for
from rollout.envs.base import Environment
from rollout.envs.checker import AnswerChecker, CheckFailed, ShellChecker, TaskChecker
from rollout.loop.task import Task
from rollout.tools.code.runner import ready_image

T = TypeVar("T")
_LEAST_BYTES = 32
"""Smaller files of tests and solution are not looked for: others are alike by chance."""
_MOST_FOUND = 20
_MOST_DIGITS = 9
"""Digits of a number of commits, which programs of the image say."""
_CAN_NOT_LOOK = 3
"""Exit code of the scripts below where the image has no program for it."""
_FIND = r"""
command -v find sha256sum > /dev/null || exit 3
sizes=()
while read -r size; do sizes+=(-o -size "${size}c"); done < /sandbox/sizes
find / -xdev -not -path '/sandbox/*' -type f \( "${sizes[@]:1}" \) -exec sha256sum {} + 2> /dev/null
true
"""
_LATER = r"""
cd -- "$TOP" || exit 3
git() { command git -c safe.directory='*' "$@"; }
git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectname)' |
  while read -r kind name; do [ "$kind" != commit ] || echo "$name"; done | git rev-list --count --stdin ^HEAD
"""
"""Counts commits, in whatever pack and behind whatever name, that are not HEAD's or before it."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Extent of a check."""

    repeats: int = 3
    """Times that solution and nothing are graded each."""
    cheats: bool = True
    parallel: int = 2
    """Plays at once."""


class EnvironmentCheck:
    """`await EnvironmentCheck(executor, environment, CheckPlan()).run(print)`. ConfigError for an environment whose
    tasks can't be played without a model."""

    def __init__(self, executor: ExecutorClient, environment: Environment, plan: CheckPlan) -> None:
        if type(environment).checker is Environment.checker:
            raise ConfigError("env can't be checked: it has no `checker`, which plays a task without a model")
        self._executor = executor
        self._environment = environment
        self._plan = plan
        self._plays = asyncio.Semaphore(plan.parallel)
        self._tasks = asyncio.Semaphore(plan.parallel)

    async def run(self, tell: Callable[[TaskReport], None]) -> list[TaskReport]:
        """Reports of all tasks, in their order; `tell` gets each as soon as it is known."""

        async def one(task: Task) -> TaskReport:
            async with self._tasks:
                report = report_of(await self._seen(task))
            tell(report)
            return report

        async with asyncio.TaskGroup() as group:
            reports = [group.create_task(one(task)) for task in self._environment.tasks()]
        return [each.result() for each in reports]

    async def _seen(self, task: Task) -> Seen:
        try:
            checker = await asyncio.to_thread(self._environment.checker, task, self._executor)  # it reads files
            if isinstance(checker, ShellChecker):
                checker.image = await ready_image(self._executor, checker.image)
            return await self._looked(checker, str(task.messages[-1]["content"]))
        except FairboxError as error:
            return Seen(task.uid, problem=str(error))

    async def _looked(self, checker: TaskChecker, instruction: str) -> Seen:
        repeats = range(self._plan.repeats)
        cheats = _cheats(checker, instruction) if self._plan.cheats else []
        first = await self._all([checker.nothing])  # what can't be played at all says so once
        nothing = first + await self._all([checker.nothing for _ in repeats[1:]])
        solution = await self._all([checker.solution for _ in repeats])
        cheated = await self._all([partial(checker.played, cheat.script) for cheat in cheats])
        return Seen(
            name=checker.name,
            test_s=checker.test_s,
            nothing=nothing,
            solution=[grade for grade in solution if grade is not None],
            cheats=list(zip(cheats, cheated, strict=True)),
            in_reach=await in_reach(checker) if isinstance(checker, ShellChecker) else (),
            later_commits=await later_commits(checker) if isinstance(checker, ShellChecker) else 0,
        )

    async def _all(self, plays: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """Results of all plays. Raises the first error when all have ended."""

        async def one(play: Callable[[], Awaitable[T]]) -> T:
            async with self._plays:
                return await play()

        return await all_of(map(one, plays))


def _cheats(checker: TaskChecker, instruction: str) -> list[Cheat]:
    if isinstance(checker, ShellChecker):
        return cheats_for(instruction)
    if isinstance(checker, AnswerChecker) and checker.language == "python":
        return programs_for(checker.names)
    return []


async def in_reach(checker: ShellChecker) -> list[str]:
    """Files of tests or solution that an agent finds in its image, by content, whatever they are called there."""
    hidden = {
        hashlib.sha256(file.content).hexdigest(): file for file in checker.hidden() if len(file.content) >= _LEAST_BYTES
    }
    if not hidden:
        return []
    sizes = "".join(f"{size}\n" for size in sorted({len(file.content) for file in hidden.values()}))
    found = []
    for line in _said(await checker.looked(_FIND, [InputFile("sizes", sizes.encode())])).splitlines():
        digest, _, path = line.partition("  ")
        if digest in hidden:
            found.append(f"{path} is {hidden[digest].path}")
    return sorted(found)[:_MOST_FOUND]


async def later_commits(checker: ShellChecker) -> int:
    """Commits that an agent finds in its repository, and that are neither HEAD nor before it."""
    if not checker.repository:
        return 0
    said = _said(await checker.looked(f"TOP={shlex.quote(checker.repository)}\n{_LATER}")).strip()
    return int(said) if said.isascii() and said.isdigit() and len(said) <= _MOST_DIGITS else 0


def _said(result: ExecutionResult) -> str:
    """Output of a look into an image. Raises CheckFailed for one that came to no end."""
    if result.outcome is not Outcome.FINISHED and result.exit_code != _CAN_NOT_LOOK:
        what = result.message or result.stderr.text[-200:].strip()
        raise CheckFailed(f"the image could not be looked through: {result.outcome}: {what}")
    return result.stdout.text
