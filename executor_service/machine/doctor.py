"""`fairbox doctor`: what this machine offers to an executor, which isolation levels work, and what changes a "no".

Invariants: levels are tried by what a server's start tries them with, with the same settings; no server is started,
nothing is left behind, and no privilege is needed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence

from executor_service.config import ExecutorConfig
from executor_service.machine.facts import LevelCapabilities, Machine, look
from executor_service.machine.findings import Answer, Finding, findings
from executor_service.machine.levels import OFFERED, allowed, scratch_folder, try_levels
from executor_service.model import IsolationLevel
from executor_service.sandbox.groups import find_groups
from executor_service.sandbox.host import Host
from fairbox.clock import MonotonicClock
from fairbox.config import load, setting
from fairbox.errors import EXIT_FAILURE, FairboxError
from fairbox.net.serving import run_service, until_stopped

_WITHIN_S = 30.0
"""For an interpreter that says its version and packages."""
_VERSIONS = """
import importlib.metadata, sys
def version(name):
    try: return " " + importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: return ""
print(sys.version.split()[0]); print(*(name + version(name) for name in sys.argv[1:]), sep="\\n")
"""


@dataclasses.dataclass(frozen=True)
class DoctorConfig(ExecutorConfig):
    """Settings of `fairbox doctor`: those of the executor, and how it answers."""

    json: bool = setting(False, help="One JSON object instead of lines to read.")


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """Output of `--json`."""

    works: bool
    """True if at least one level works: exit code 0."""
    level: str
    """The level that an executor with these settings would run programs at; empty: it would not start."""
    levels: dict[str, bool]
    """Each level, and whether it works."""
    findings: tuple[Finding, ...]
    """From the kernel up to the executor."""
    machine: Machine
    """The facts that they rest on."""


async def examine(config: ExecutorConfig) -> Diagnosis:
    """Looks at this machine and tries every level."""
    host, levels, broken = None, [LevelCapabilities(level, available=False) for level in OFFERED], ""
    try:
        with scratch_folder(config.scratch) as scratch:
            tried = await try_levels(config, MonotonicClock(), groups=find_groups("none"), scratch=scratch)
        host, levels = tried.hosts[OFFERED[0]], list(tried.levels)
    except FairboxError as error:
        broken = str(error)
    machine = look(
        python=host.python if host else config.python,
        root=host.privileged if host else os.geteuid() == 0,
        cgroups=config.cgroups,
    )
    found = findings(machine, levels if not broken else ())
    if host:
        found += [_packages(host, config), _languages(host, config)]
    level = allowed(levels, config)
    found.append(_executor(level, levels, broken))
    return Diagnosis(
        works=any(facts.available for facts in levels),
        level=level or "",
        levels={facts.level.value: facts.available for facts in levels},
        findings=tuple(found),
        machine=machine,
    )


def _packages(host: Host, config: ExecutorConfig) -> Finding:
    """The interpreter of programs, and those packages there that profiles load."""
    names = sorted({name for profile in config.runtime_profiles() for name in profile.packages})
    command = [host.python, "-I", "-c", _VERSIONS, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)  # noqa: S603
    version, *packages = done.stdout.splitlines() or ("unknown version",)
    absent = [name for name in packages if " " not in name]
    there = ", ".join(name for name in packages if " " in name) or "none of the profiles' packages"
    return Finding(
        "Python of programs",
        Answer.PARTLY if absent else Answer.YES,
        f"{host.python} ({version}): {there}" + (f"; not {', '.join(absent)}" if absent else ""),
        f"{host.python} -m pip install {' '.join(absent)}; or python=ANOTHER" if absent else "",
    )


def _languages(host: Host, config: ExecutorConfig) -> Finding:
    there = [spec.name for spec in config.offered() if spec.name not in host.missing]
    lacking = [f"{name}: {host.missing[name]}" for name in sorted(config.promised() & host.missing.keys())]
    return Finding(
        "languages",
        Answer.NO if lacking else Answer.YES,
        f"tools of {', '.join(there)}; none of {', '.join(host.missing) or 'no other'}",
        "; ".join(lacking),
    )


def _executor(level: IsolationLevel | None, levels: Sequence[LevelCapabilities], broken: str) -> Finding:
    question = "executor"
    if broken:
        remedy = "apt-get install libseccomp2" if "libseccomp" in broken else "the setting that this names"
        return Finding(question, Answer.NO, broken, remedy)
    if level is not None:
        return Finding(question, Answer.YES, f"starts, at level {level}")
    working = [facts.level for facts in levels if facts.available]
    if working:
        remedy = f"isolation=auto min_isolation={working[-1]}"
        return Finding(question, Answer.NO, "isolation and min_isolation exclude what works", remedy)
    return Finding(question, Answer.NO, "refuses to start: no level works", "what is said of a level above")


def _lines(report: Diagnosis) -> str:
    width = max(len(finding.question) for finding in report.findings) + 2
    lines = []
    for finding in report.findings:
        lines.append(f"{finding.answer:<7} {finding.question:<{width}}{finding.sentence}")
        if finding.remedy:
            lines.append(textwrap.indent(f"change: {finding.remedy}", " " * (8 + width)))
    return "\n".join(lines)


def main() -> int:
    """Entry point; 0 if at least one level works, 1 otherwise."""
    works: list[bool] = []

    async def show(config: DoctorConfig) -> None:
        report = await examine(config)
        print(json.dumps(dataclasses.asdict(report)) if config.json else _lines(report))
        works.append(report.works)

    async def program(stop: asyncio.Event) -> None:
        config = load(DoctorConfig, prefix="EXECUTOR", prog="fairbox doctor", description=__doc__ or "")
        await until_stopped(stop, show(config))

    return run_service(program, name="fairbox doctor") or (EXIT_FAILURE if works == [False] else 0)


if __name__ == "__main__":
    sys.exit(main())
