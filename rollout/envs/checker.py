"""Bases of what plays a task without a model, so that its tests can be checked (`fairbox check-env`): tasks of a shell,
and tasks that are answered by a text.

Invariants: tests run as they do for a trajectory; what an agent could have caused is a grade of 0, what it could not is
raised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor_service import (
    CannotSnapshot,
    Cause,
    ExecutionResult,
    ExecutorClient,
    InputFile,
    Limits,
    SessionNotFound,
)
from fairbox.errors import FairboxError

AGENT_S = 60.0
"""Seconds that a script may take in an agent's place."""


class CheckFailed(FairboxError):
    """The service did not play a task to its end; nothing is known of the task."""


@dataclass(frozen=True, slots=True)
class Grade:
    """The worth of something that was played, and what people want to know beside it."""

    reward: float
    said: str = ""
    """End of what the tests printed, or why none ran."""
    failed: tuple[str, ...] = ()
    """Names of tests that did not pass, where they have any."""
    believed: bool = True
    """False: the report of the tests can't be trusted."""
    test_s: float = 0.0
    """Seconds that the tests took."""


@dataclass(frozen=True, slots=True)
class LeftFiles:
    """The files that a script has left, as an image, and what it printed."""

    image: str | None
    """None: they can't be kept, as `said` tells."""
    said: str
    exit_code: int


class TaskChecker(ABC):
    """One task of an environment. Its methods raise FairboxError where the service or the data failed."""

    name: str
    test_s: float
    """Seconds that the tests may take; 0: that is not known."""

    @abstractmethod
    async def nothing(self) -> Grade:
        """Grade of an agent that does nothing."""

    @abstractmethod
    async def solution(self) -> Grade | None:
        """Grade of the task's own solution; None: it has none."""

    @abstractmethod
    async def played(self, answer: str) -> Grade:
        """Grade of an answer."""


class AnswerChecker(TaskChecker):
    """A task that is answered by a text."""

    language: str = ""
    """Language of the program that is asked for; empty: none is."""
    names: Sequence[str] = ()
    """Functions and classes that the program has to have."""


class ShellChecker(TaskChecker):
    """A task that is answered by what an agent leaves in an image. Its answers are scripts of the agent's shell."""

    repository: str = ""
    """Folder of a git repository whose later history would be the answer; empty: there is none."""

    def __init__(self, executor: ExecutorClient, image: str, env: Mapping[str, str], memory_bytes: int) -> None:
        """`image`: the task's, which the executor has; `memory_bytes` 0: the executor's own limit."""
        self.executor = executor
        self.image = image
        self.env = env
        self.memory_bytes = memory_bytes

    def hidden(self) -> Sequence[InputFile]:
        """Files of tests and solution, which no agent is to find."""
        return ()

    async def looked(self, script: str, files: Sequence[InputFile] = ()) -> ExecutionResult:
        """Runs a script in an agent's untouched shell."""
        return await self.ran(
            script, language="bash", image=self.image, env=self.env, files=files, limits=self._limits(AGENT_S)
        )

    async def ran(self, code: str, **options: Any) -> ExecutionResult:
        """Runs a program; `options` as for `ExecutorClient.execute`. Raises CheckFailed where the service failed it."""
        return _unfailed(await self.executor.execute(code, **options))

    async def left(self, script: str, *, seconds: float = AGENT_S, **more: Any) -> LeftFiles:
        """Runs a script in a shell of its own; `more` as for `ExecutorClient.session` and `files`."""
        files, env = more.pop("files", ()), more.pop("env", self.env)
        async with self.executor.session(
            language="bash", image=self.image, env=env, limits=self._limits(seconds), **more
        ) as session:
            result = _unfailed(await session.run(script, files=files, timeout=seconds))
            said = f"{result.stdout.text}{result.stderr.text}"[-2000:].strip()
            try:
                return LeftFiles((await session.snapshot()).image, said, result.exit_code)
            except (CannotSnapshot, SessionNotFound) as error:
                if error.cause is Cause.INFRA:
                    raise
                return LeftFiles(None, str(error), result.exit_code)  # the script has ended the session, for instance

    def _limits(self, seconds: float) -> Limits:
        return Limits(wall_time_s=seconds, memory_bytes=self.memory_bytes)


def _unfailed(result: ExecutionResult) -> ExecutionResult:
    if result.cause is Cause.INFRA:
        raise CheckFailed(f"the executor reports {result.outcome}: {result.message}")
    return result
