"""From source to program, once for each source: compilers run in a sandbox, and what they make is kept.

Invariants: a compiler is as untrusted as the program, and runs under the lease and in the slot of the run that needs
it; nothing is shared but what came out; what failed through no fault of the source is neither kept nor shared; a run
that is cancelled takes its compiler with it, and the one that has waited longest for that compiler starts its own; what
is kept is bounded by bytes, of which each entry costs some, and the least recently used goes first.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from cachetools import LRUCache

from executor_service.languages import LANGUAGES, Needs
from executor_service.model import Cause, Compilation, FileStatus, InputFile, Limits, Outcome, RunRequest
from executor_service.programs.plans import Planner
from executor_service.programs.verdict import judge
from executor_service.sandbox.report import Plan, Report
from executor_service.v1 import executor_pb2 as pb

_MIB = 1 << 20
_MADE_BYTES = 64 * _MIB
"""All that a compiler made, together. Larger programs are refused: each run copies them into its sandbox."""
_MADE_MODE = 0o755
_ENTRY_BYTES = 1024
"""Bytes that an entry costs beside its program; counted, so that many small ones are bounded too."""
_CPU_FACTOR = 4
"""Compilers use several processors: their CPU time may be so many times their wall time."""


class NotCompiled(Exception):
    """The compiler was stopped for a reason that the source did not cause: outcome, cause, and a sentence."""

    def __init__(self, outcome: Outcome, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.cause = cause
        self.message = message


@dataclass(frozen=True, slots=True)
class Build:
    """Result of compiling a source."""

    compilation: Compilation | None = None
    """None where nothing was to be compiled."""
    made: tuple[InputFile, ...] = ()
    """Empty when compiling failed."""
    message: str = ""
    """Why there is no program; empty when there is one."""

    @property
    def size(self) -> int:
        """Bytes that keeping it costs."""
        said = [self.compilation.stdout, self.compilation.stderr] if self.compilation else []
        return _ENTRY_BYTES + sum(len(file.content) for file in self.made) + sum(len(output.data) for output in said)


@dataclass(eq=False, slots=True)
class _Turns:
    """Runs that need one program that is not there: one compiles it, in the order in which they came."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    runs: int = 0
    build: Build | None = None
    """Whatever came out, which all of them share."""


class Compiler:
    """Shared by all runs of a server. `versions`: language -> what its probe said; `maxima`: limits never exceeded."""

    def __init__(self, planner: Planner, *, versions: Mapping[str, str], maxima: Limits, max_bytes: int) -> None:
        self._planner = planner
        self._versions = versions
        self._maxima = maxima
        self._kept: LRUCache[bytes, Build] = LRUCache(max_bytes, getsizeof=lambda build: build.size)
        self._building: dict[bytes, _Turns] = {}
        self._hits = self._built = self._stored = 0

    async def build(self, request: RunRequest, in_sandbox: Callable[[Plan], Awaitable[Report]]) -> Build:
        """The program of `request`. `in_sandbox` runs a plan to its end; what it raises is raised here.

        Raises NotCompiled when the compiler was stopped for a reason that is ours.
        """
        plan = self.plan(request)
        key = self._key(request, plan)
        if known := self._kept.get(key):
            return self._found(known)
        turns = self._building.setdefault(key, _Turns())
        turns.runs += 1
        try:
            # Bounded: each of those who compile before this one is, by the time limit of its compiler.
            async with turns.lock:
                if turns.build is not None:
                    return self._found(turns.build)
                turns.build, keep = _outcome_of(await in_sandbox(plan), plan)
                self._built += 1
                if keep and turns.build.size <= self._kept.maxsize:
                    self._kept[key] = turns.build
                    self._stored += 1
                return turns.build
        finally:
            turns.runs -= 1
            if (turns.build is not None or not turns.runs) and self._building.get(key) is turns:
                del self._building[key]

    def plan(self, request: RunRequest) -> Plan:
        """Plan that compiles the source of `request`."""
        limits = self._limits(request.limits, LANGUAGES[request.language].compiler_needs)
        return self._planner.compilation(request, limits)

    def status(self) -> pb.CompileCacheStatus:
        """For GetStatus."""
        return pb.CompileCacheStatus(
            entries=len(self._kept),
            bytes=int(self._kept.currsize),
            building=len(self._building),
            waiting=sum(turns.runs - 1 for turns in self._building.values()),
            hits_total=self._hits,
            built_total=self._built,
            evicted_total=self._stored - len(self._kept),
        )

    def _found(self, build: Build) -> Build:
        """The build that another run compiled, marked as cached."""
        self._hits += 1
        assert build.compilation is not None
        return replace(build, compilation=replace(build.compilation, cached=True))

    def _limits(self, asked: Limits, needs: Needs) -> Limits:
        """Limits of the request, raised to what the compiler needs, and never above what the server allows."""
        raised = replace(
            asked,
            wall_time_s=asked.compile_time_s,
            cpu_time_s=min(asked.compile_time_s * _CPU_FACTOR, self._maxima.cpu_time_s),
            return_bytes=_MADE_BYTES,
        )
        for each in fields(Needs):
            least = min(getattr(needs, each.name), getattr(self._maxima, each.name))
            raised = replace(raised, **{each.name: max(getattr(asked, each.name), least)})
        return raised

    def _key(self, request: RunRequest, plan: Plan) -> bytes:
        """All that what comes out depends on. The limits too: those who wait share an end by a limit."""
        facts = [request.language, self._versions.get(request.language, ""), plan.argv, dict(plan.env)]
        digest = hashlib.sha256(json.dumps([*facts, asdict(plan.limits)], sort_keys=True).encode())
        for file in plan.files:
            digest.update(f"\0{len(file.path.encode())} {file.mode} {len(file.content)}\0{file.path}".encode())
            digest.update(file.content)
        return digest.digest()


def _outcome_of(report: Report, plan: Plan) -> tuple[Build, bool]:
    """The build, and whether another try would give the same: a limit met may be the machine's bad day."""
    outcome, cause, message = judge(report, plan.limits, "compiler")
    if cause is not Cause.POLICY:
        raise NotCompiled(outcome, cause, message)
    compilation = Compilation(
        outcome=outcome,
        exit_code=128 + report.signal if report.signal else report.code,
        stdout=report.stdout,
        stderr=report.stderr,
        wall_time_s=report.wall_s,
    )
    ended_by_itself = outcome in (Outcome.FINISHED, Outcome.NONZERO_EXIT)
    if outcome is not Outcome.FINISHED:
        said = message or f"The compiler ended with exit code {report.code}."
        return Build(compilation, message=f"Not run: compiling failed. {said}"), ended_by_itself
    lacking = next((file for file in report.files if file.status is not FileStatus.RETURNED), None)
    if lacking is not None:
        what = f"of more than {_MADE_BYTES} bytes" if lacking.status is FileStatus.TOO_LARGE else "that is no program"
        said = "made no" if lacking.status is FileStatus.MISSING else f"made something {what} as"
        return Build(compilation, message=f"Not run: compiling failed. The compiler {said} {lacking.path!r}."), True
    made = tuple(InputFile(file.path, file.content, _MADE_MODE) for file in report.files)
    return Build(compilation, made), True
