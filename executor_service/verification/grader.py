"""Workers for candidates and checkers, and how they begin: all that a case needs of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace

from executor_service.grading.request import VerifyRequest
from executor_service.model import InputFile, Limits
from executor_service.programs.plans import Hold, mounted
from executor_service.programs.programs import Programs
from executor_service.runs.backends import Execution
from executor_service.sandbox.report import NO_END_S, Killed, Mode, Plan
from executor_service.verification.guest_process import BoxWorkers, GuestProcess
from fairbox.clock import Clock

MODULE_FILE = "solution.py"
_PARENT = 1
"""The process that is forked, beside those of a call."""


def _no_workspace(workspace_id: str, tenant: str, limits: Limits) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Grader:
    """Parts of the server that every case needs."""

    workers: BoxWorkers
    programs: Programs
    """Runs whole programs."""
    clock: Clock
    env: Mapping[str, str]
    profile_for: Callable[[bytes], str]
    """The runtime profile that suits a source."""
    hold: Hold = _no_workspace
    forks: bool = False
    """True if candidates can be forked at the level of this server."""
    bare: bool = False
    """True if that level has no namespaces."""

    @asynccontextmanager
    async def take_candidate(
        self, request: VerifyRequest, name: str, *, forks: bool = False
    ) -> AsyncIterator[GuestProcess]:
        """A worker for the candidate, with its workspace. `forks`: it is to be forked, for calls whose CPU time is
        kept apart."""
        program = request.program
        with self.hold(program.workspace_id, program.tenant, program.limits) as workspace:
            async with self.workers.take(mounted(self.candidate(request, forks=forks), workspace), name=name) as worker:
                yield worker

    @asynccontextmanager
    async def take_checker(self, request: VerifyRequest, name: str) -> AsyncIterator[GuestProcess]:
        """A worker for the checker, without a workspace."""
        async with self.workers.take(self.checker(request), name=name) as worker:
            yield worker

    def candidate(self, request: VerifyRequest, *, forks: bool = False) -> Plan:
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


async def bind(attempt: Execution, *workers: GuestProcess) -> None:
    """Nothing of the candidate runs before the lease is bound."""

    def lost() -> None:
        for worker in workers:
            worker.kill(Killed.LAPSED)

    await attempt.begin(lost)
    for worker in workers:
        await worker.start()
