"""The tool bash of a repository to be fixed: the model's shell in the task's image, and hidden tests when it has ended.

    await shell.create("t", image="task", tests=RepositoryTests(...))
    await shell.execute("t", {"command": "sed -i s/1/2/ pkg/a.py"})
    await shell.calc_reward("t")  # {"reward": 1.0, "fail_to_pass": 1.0, ...}

Invariants: only the difference between the untouched image and what the trajectory left counts; it is taken in one
sandbox and tested in another, of the task's own image, so that neither process nor program nor file of the agent's
outside of the repository is there; what the model could cause is worth 0, what it could not is an InfraError.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shlex
from collections.abc import Mapping
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from cachetools import LRUCache

from executor_service import ExecutionResult
from rollout.envs.swe.grading import AgentChange, RowMismatch, RunProgram, SuiteGrading, grade, look, nothing, take
from rollout.envs.swe.programs import GradingProgram, ImageBase, RepositoryTests
from rollout.tools.base import InfraError
from rollout.tools.code.client import Slot
from rollout.tools.code.graded import GradedShell, TaskShellConfig, UngradableError

_LOG = logging.getLogger("fairbox.rollout")
_MOST_BASES = 256
"""Images that are remembered, each with at most a mebibyte."""
_BEGIN = '[ -n "${_fairbox_began-}" ] || { _fairbox_began=1; cd -- %s; eval %s; }; '
"""Before each command, because a shell may be a new one; folder and setup are quoted."""


class RepositoryShell(GradedShell[RepositoryTests]):
    """`async with RepositoryShell(TaskShellConfig(), executor=..., limiter=...) as shell`."""

    tests_type = RepositoryTests

    def __init__(self, config: TaskShellConfig, **more: Any) -> None:
        super().__init__(config, **more)
        self._bases: LRUCache[tuple[str, ...], ImageBase] = LRUCache(_MOST_BASES)
        """Image, folder and test patch -> what the untouched image says."""
        self._looking: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()
        """Key of `_bases` -> what is held while that image is looked at, so that a group's trajectories ask once."""

    def _prelude(self, trajectory_id: str) -> str:
        tests = self._tests.get(trajectory_id)
        if tests is None:
            return ""
        return _BEGIN % (shlex.quote(tests.working_dir), shlex.quote(tests.setup or ":"))

    async def _grade(self, trajectory_id: str, tests: RepositoryTests) -> Mapping[str, float]:
        image = self._sessions().surroundings(trajectory_id).image

        async def run(program: GradingProgram) -> ExecutionResult:
            return await self._in_slot(lambda slot: self._program(trajectory_id, slot, program))

        try:
            base = await self._base(run, tests, image)
            grading = await self._graded(trajectory_id, tests, base, run)
        except UngradableError as error:
            grading = nothing("no_diff", said=str(error))
        except RowMismatch as error:
            raise InfraError(str(error)) from error
        _LOG.debug("trajectory %s has %s, and its tests: %s", trajectory_id, grading.numbers, grading.said)
        return grading.numbers

    async def _graded(
        self, trajectory_id: str, tests: RepositoryTests, base: ImageBase, run: RunProgram
    ) -> SuiteGrading:
        async def take_it(slot: Slot) -> AgentChange | None:
            # Here, so that no more of them wait for their difference than may run at once.
            left = await self._kept(trajectory_id)
            taken = partial(self._program, trajectory_id, slot, left=True)
            return None if left is None else await take(taken, tests, base, left)

        change = await self._in_slot(take_it)
        if change is None:
            return nothing("no_change")
        if change.problem:
            return nothing(change.problem)
        image = self._sessions().surroundings(trajectory_id).image
        return await grade(run, tests, base, image, change.patch)

    async def _program(
        self, trajectory_id: str, slot: Slot, program: GradingProgram, *, left: bool = False
    ) -> ExecutionResult:
        sessions = self._sessions()
        env, memory_bytes = sessions.surroundings(trajectory_id).env, sessions.memory_bytes(trajectory_id)
        options = program.options(env, memory_bytes)
        return await self._run_program(slot, program.code, program.timeout_s, left=left, **options)

    async def _base(self, run: RunProgram, tests: RepositoryTests, image: str) -> ImageBase:
        key = (image, tests.working_dir, hashlib.sha256(tests.test_patch.encode()).hexdigest())
        lock = self._looking.setdefault(key, asyncio.Lock())
        async with lock:
            found = self._bases.get(key) or await look(run, tests, image)
            self._bases[key] = found
            return found
