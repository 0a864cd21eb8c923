"""The common part of shells whose trajectory is graded when it has ended, by programs in sandboxes of their own.

A kind of such a shell says what its tasks name as `tests`, and in `_grade` what a trajectory has earned. Invariants:
whatever the model left is an UngradableError or worth what the tests say; whatever it could not cause is an InfraError;
each program of a grading has a slot, a lease and a second attempt of its own, as nobody has seen the first one's result
and the session stays as it was.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from executor_service import CannotSnapshot, ExecutionResult, InvalidRequest
from fairbox.config import setting
from fairbox.errors import ConfigError, FairboxError
from limiter import LeaseLike
from rollout.tools.base import InfraError
from rollout.tools.code.bash import BashConfig, BashTool
from rollout.tools.code.client import RetryableError, Slot
from rollout.tools.code.sessions import SessionRunner

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class TaskShellConfig(BashConfig):
    """Settings of the tool."""

    mode: str = setting("shell", choices=("shell",), help="One shell in the task's image, until the trajectory ends.")


class UngradableError(Exception):
    """The tests can't be run in what the model has left; the text says why."""


class GradedShell(BashTool, Generic[T]):
    """A shell in its task's image, with the task's tests: an object of `tests_type` among the options of `create`."""

    config_type = TaskShellConfig
    tests_type: ClassVar[type[Any]]

    def __init__(self, config: BashConfig, **more: Any) -> None:
        if config.mode != "shell":
            raise ConfigError(f"mode is {config.mode!r}, must be shell: tests look at what a trajectory has left")
        super().__init__(config, **more)
        self._tests: dict[str, T] = {}
        """Trajectory id -> its task's tests."""

    @abstractmethod
    async def _grade(self, trajectory_id: str, tests: T) -> Mapping[str, float]:
        """Numbers by name that the trajectory has earned. Raises InfraError."""

    async def create(self, trajectory_id: str, **options: Any) -> None:
        """Takes the task's `tests` and, as the tool bash does, `image`, `env` and `memory_mb`. Raises InfraError."""
        tests = options.get("tests")
        if not isinstance(tests, self.tests_type) or not options.get("image"):
            raise InfraError(f"the task names image and tests {options.get('image')!r} and {tests!r}, must have both")
        await super().create(trajectory_id, **options)
        self._tests[trajectory_id] = tests

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """Forks a trajectory in which nothing has run yet. Raises BranchRefused and InfraError."""
        await super().branch(trajectory_id, branches)
        if trajectory_id in self._tests:
            self._tests |= dict.fromkeys(branches, self._tests[trajectory_id])

    async def release(self, trajectory_id: str) -> None:
        """Ends the trajectory's shell. Idempotent."""
        self._tests.pop(trajectory_id, None)
        await super().release(trajectory_id)

    async def calc_reward(self, trajectory_id: str) -> Mapping[str, float] | None:
        """Runs the tests on what the trajectory has left; None for one that was never created. Raises InfraError."""
        tests = self._tests.get(trajectory_id)
        return None if tests is None else await self._grade(trajectory_id, tests)

    async def _in_slot(self, work: Callable[[Slot], Awaitable[R]]) -> R:
        """Runs `work` in a slot, and once more if the service failed. Raises InfraError."""
        client = self._sessions().client

        async def attempt(unbound: LeaseLike | None) -> R:
            try:
                async with client.slot(unbound) as slot:
                    return await work(slot)
            except RetryableError:
                raise
            except FairboxError as error:
                raise RetryableError(f"the tests could not be run: {error}") from error

        with self._gate.noted():
            return await client.attempts(attempt)

    async def _kept(self, trajectory_id: str) -> str | None:
        """Image of what the trajectory has left; None: nothing, so that its task's image is as it was. Raises
        UngradableError."""
        try:
            return await self._sessions().snapshot(trajectory_id)
        except CannotSnapshot as error:
            raise UngradableError(str(error)) from error

    async def _run_program(
        self, slot: Slot, code: str, timeout_s: float, *, left: bool, **options: Any
    ) -> ExecutionResult:
        """Runs a program of a grading. `left`: in an image of what the trajectory has left. Raises UngradableError."""
        try:
            return await self._sessions().client.execute(code, slot, timeout_s, **options)
        except InvalidRequest as error:
            if left and error.fields and all(each.field == "image" for each in error.fields):
                raise UngradableError(str(error)) from error  # bash or the image's folder is no more
            raise

    def _sessions(self) -> SessionRunner:
        runner = self._runner()
        assert isinstance(runner, SessionRunner)
        return runner
