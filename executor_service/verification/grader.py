"""Workers for candidates and checkers, and how they begin: all that a case needs of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace

from executor_service.grading.request import VerifyRequest
from executor_service.model import InputFile, Limits
from executor_service.programs.plans import Hold, mounted
from executor_service.programs.programs import Programs
from executor_service.runs.backends import Execution
from executor_service.sandbox.checkout import SandboxRun
from executor_service.sandbox.report import NO_END_S, Killed, Mode, Plan
from executor_service.verification.guest_process import GuestProcess
from fairbox.clock import Clock

MODULE_FILE = "solution.py"
_PARENT = 1
"""The process that is forked, beside those of a call."""


@dataclass(frozen=True, slots=True)
class Grader:
    """Parts of the server that every case needs."""

    take: Callable[[Plan], AbstractAsyncContextManager[GuestProcess]]
    """Takes a process for a plan: see `guest_process`."""
    programs: Programs
    """Runs whole programs."""
    clock: Clock
    env: Mapping[str, str]
    profile_for: Callable[[bytes], str]
    """The runtime profile that suits a source."""
    hold: Hold
    forks: bool = False
    """True if candidates can be forked at the level of this server."""
    bare: bool = False
    """True if that level has no namespaces."""

    @asynccontextmanager
    async def take_candidate(self, request: VerifyRequest, *, forks: bool = False) -> AsyncIterator[GuestProcess]:
        """A worker for the candidate, with its workspace. `forks`: it is to be forked, for calls whose CPU time is
        kept apart."""
        program = request.program
        with self.hold(program.workspace_id, program.tenant, program.limits) as workspace:
            async with self.take(mounted(self._candidate(request, forks=forks), workspace)) as worker:
                yield worker

    def take_checker(self, request: VerifyRequest) -> AbstractAsyncContextManager[GuestProcess]:
        """A worker for the checker, without a workspace."""
        return self.take(self.checker(request))

    def _candidate(self, request: VerifyRequest, *, forks: bool = False) -> Plan:
        program = request.program
        files, limits = (InputFile(MODULE_FILE, program.code), *program.files), program.limits
        if forks:
            limits = replace(limits, cpu_time_s=NO_END_S, processes=limits.processes + _PARENT)
        return self._plan("candidate", limits, files, program.code)

    def checker(self, request: VerifyRequest) -> Plan:
        program = request.program
        files = request.test_files
        sources = b"\n".join([request.setup_code.encode(), *(file.content for file in files)])
        return self._plan("checker", program.limits, files, sources)

    def _plan(self, entry: str, limits: Limits, files: tuple[InputFile, ...], sources: bytes) -> Plan:
        return Plan(
            argv=(MODULE_FILE,),
            env=self.env,
            limits=replace(limits, wall_time_s=NO_END_S),
            profile=self.profile_for(sources),
            mode=Mode.SERVE,
            files=files,
            entry=entry,
        )


async def bind(attempt: Execution, *sides: GuestProcess | SandboxRun) -> None:
    """Nothing of the candidate runs before the lease is bound to all sides: then processes start, and programs may."""

    def lost() -> None:
        for side in sides:
            side.kill(Killed.LAPSED)

    await attempt.begin(lost)
    for side in sides:
        if isinstance(side, SandboxRun):
            side.hold_lease()
        else:
            await side.start()
