"""What works here, found out by doing it, once, before the server listens.

Invariants: a level or a language is offered only if a program really ran with it; what does not work is said with the
step that failed and what to look at.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from executor_service.languages import LANGUAGES, LanguageSpec
from executor_service.model import IsolationLevel, Limits
from executor_service.sandbox.boxes import Boxes
from executor_service.sandbox.report import SandboxFailure
from executor_service.server.levels import LevelFacts
from executor_service.server.plans import Planner
from executor_service.v1 import executor_pb2 as pb

_LIMITS = Limits(
    wall_time_s=20.0,
    cpu_time_s=20.0,
    memory_bytes=512 << 20,
    processes=256,
    open_files=256,
    output_bytes=64 << 10,
    file_bytes=1 << 20,
    disk_bytes=1 << 20,
    return_bytes=0,
)
_NUMBER = re.compile(r"\d\.\d")
"""What the line with the version has; some toolchains warn or greet first."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this server offers."""

    levels: tuple[LevelFacts, ...]
    """Strongest first."""
    languages: tuple[pb.LanguageStatus, ...]
    """By name."""
    level: IsolationLevel
    """The one that programs run at."""

    @property
    def versions(self) -> dict[str, str]:
        """Language -> version, of those installed."""
        return {facts.name: facts.version for facts in self.languages if facts.installed}

    @property
    def installed(self) -> frozenset[str]:
        return frozenset(facts.name for facts in self.languages if facts.installed)


async def probe(
    planner: Planner, boxes: Boxes, *, missing: Mapping[str, str], levels: Sequence[LevelFacts]
) -> Capabilities:
    """`missing`: language -> why it is not even tried; `levels`: those that were tried, the strongest first.

    Raises SandboxFailure where no sandbox works."""
    languages = [pb.LanguageStatus(name=name, installed=False, reason=reason) for name, reason in missing.items()]
    languages += await _languages(planner, boxes, [spec for name, spec in LANGUAGES.items() if name not in missing])
    return Capabilities(tuple(levels), tuple(sorted(languages, key=lambda facts: facts.name)), boxes.level)


async def _languages(planner: Planner, boxes: Boxes, specs: Sequence[LanguageSpec]) -> list[pb.LanguageStatus]:
    """A few at a time: some toolchains take a second to say their version."""
    waiting = list(specs)
    found: list[pb.LanguageStatus] = []

    async def work() -> None:
        while waiting:
            found.append(await _language(planner, boxes, waiting.pop(0)))

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(os.cpu_count() or 1):
                group.create_task(work(), name=f"probe {number}")
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return found


async def _language(planner: Planner, boxes: Boxes, spec: LanguageSpec) -> pb.LanguageStatus:
    plan = planner.probe(spec, _LIMITS)
    try:
        async with boxes.take(plan) as sandbox:
            report = await sandbox.run()
    except SandboxFailure as failure:
        if failure.stage != "exec":
            raise
        return pb.LanguageStatus(name=spec.name, installed=False, reason=f"{plan.argv[0]} can't be started: {failure}")
    said = [line for line in (report.stdout.text + report.stderr.text).splitlines() if line.strip()]
    if report.killed or report.code or report.signal:
        ending = f"signal {report.signal}" if report.signal else f"exit code {report.code}"
        ending = f"{report.killed} limit" if report.killed else ending
        last = f": {said[-1].strip()[:200]}" if said else ""
        reason = f"{' '.join(plan.argv)} failed with {ending}{last}; it comes with {spec.install}"
        return pb.LanguageStatus(name=spec.name, installed=False, reason=reason)
    version = next((line for line in said if _NUMBER.search(line)), said[0] if said else "")
    return pb.LanguageStatus(name=spec.name, installed=True, version=version.strip()[:200])
