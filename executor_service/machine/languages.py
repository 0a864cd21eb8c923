"""Which languages work here, found out by doing it: before the server listens, and again for those that failed.

Invariants: a language is offered only if a program really ran with it; what does not work is said with the step that
failed and what to look at; a server that lacks a language that it was promised with is not ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from executor_service.languages import LANGUAGES, LanguageSpec
from executor_service.machine.facts import LevelCapabilities
from executor_service.machine.levels import PROBE_LIMITS
from executor_service.programs.plans import Planner
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import SandboxFailure
from executor_service.v1 import executor_pb2 as pb

_AGAIN_S, _AGAIN_MOST_S = 1.0, 300.0
"""Between two attempts, doubled up to this: one costs as much as the slowest toolchain takes to say its version."""
_log = logging.getLogger(__name__)
_NUMBER = re.compile(r"\d\.\d")
"""Pattern in the line with the version; some toolchains warn or greet first."""


class Capabilities:
    """Levels and languages of this server. The block of `probed()` goes on trying languages that have not come."""

    def __init__(
        self,
        planner: Planner,
        boxes: SandboxPool,
        *,
        missing: Mapping[str, str],
        levels: Sequence[LevelCapabilities],
        needed: Collection[str],
    ) -> None:
        self.levels = tuple(levels)
        """Strongest first."""
        self.level = boxes.level
        """The one that programs run at."""
        self.versions: dict[str, str] = {}
        """Language -> version, of those that work by now."""
        self.complete = asyncio.Event()
        """Set once nothing is lacking."""
        self._reasons = dict(missing)
        self._needed = needed
        self._planner = planner
        self._boxes = boxes

    @property
    def languages(self) -> tuple[pb.LanguageStatus, ...]:
        """All, by name."""
        names = sorted({*self.versions, *self._reasons})
        return tuple(
            pb.LanguageStatus(name=name, installed=True, version=self.versions[name])
            if name in self.versions
            else pb.LanguageStatus(name=name, reason=self._reason(name))
            for name in names
        )

    def lacking(self) -> list[str]:
        """Names and reasons of languages without which this server is not ready."""
        return [f"{name}: {self._reasons[name]}" for name in sorted(self._needed) if name not in self.versions]

    def _reason(self, name: str) -> str:
        return self._reasons[name] + ("; this server is not ready without it" if name in self._needed else "")

    async def look(self, specs: Sequence[LanguageSpec]) -> list[LanguageSpec]:
        """Tries languages, a few at a time: some toolchains take a second to say their version. Returns those that
        failed; SandboxFailure where no sandbox works."""
        waiting, failed = list(specs), []

        async def work() -> None:
            while waiting:
                spec = waiting.pop(0)
                works, said = await _language(self._planner, self._boxes, spec)
                if works:
                    self.versions[spec.name] = said
                else:
                    self._reasons[spec.name] = said
                    failed.append(spec)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(os.cpu_count() or 1):
                    group.create_task(work(), name=f"probe {number}")
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        if not self.lacking():
            self.complete.set()
        return failed

    async def look_again(self, specs: Sequence[LanguageSpec]) -> None:
        """Returns when all work: a machine may be too busy for some, or its tools on their way."""
        pause_s = _AGAIN_S
        while specs:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _AGAIN_MOST_S)
            try:
                specs = await self.look(specs)
            except SandboxFailure as failure:
                _log.warning("languages can't be tried: %s", failure)
                specs = [spec for spec in specs if spec.name not in self.versions]


@contextlib.asynccontextmanager
async def probed(
    planner: Planner,
    boxes: SandboxPool,
    *,
    missing: Mapping[str, str],
    levels: Sequence[LevelCapabilities],
    needed: Collection[str],
) -> AsyncIterator[Capabilities]:
    """`missing`: language -> why it is not even tried; `levels`: those that were tried, the strongest first; `needed`:
    languages that were promised.

    SandboxFailure on entering it where no sandbox works."""
    capabilities = Capabilities(planner, boxes, missing=missing, levels=levels, needed=needed)
    failed = await capabilities.look([spec for name, spec in LANGUAGES.items() if name not in missing])
    again = asyncio.create_task(capabilities.look_again(failed), name="languages")
    try:
        yield capabilities
    finally:
        again.cancel()
        await asyncio.wait([again])


async def _language(planner: Planner, boxes: SandboxPool, spec: LanguageSpec) -> tuple[bool, str]:
    """Says whether it works, and its version, or why not."""
    plan = planner.probe(spec, PROBE_LIMITS)
    try:
        async with boxes.take(plan) as sandbox:
            report = await sandbox.run()
    except SandboxFailure as failure:
        if failure.stage != "exec":
            raise
        return False, f"{plan.argv[0]} can't be started: {failure}"
    said = [line for line in (report.stdout.text + report.stderr.text).splitlines() if line.strip()]
    if report.killed or report.code or report.signal:
        ending = f"signal {report.signal}" if report.signal else f"exit code {report.code}"
        ending = f"{report.killed} limit" if report.killed else ending
        last = f": {said[-1].strip()[:200]}" if said else ""
        return False, f"{' '.join(plan.argv)} failed with {ending}{last}; it comes with {spec.install}"
    version = next((line for line in said if _NUMBER.search(line)), said[0] if said else "")
    return True, version.strip()[:200]
