"""What works here, found out by doing it, once, before the server listens.

Invariants: a level or a language is offered only if a program really ran with it; what does not work is said with the
step that failed and what to look at.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from executor_service.languages import LANGUAGES, PYTHON_BASE, LanguageSpec
from executor_service.model import IsolationLevel, Limits
from executor_service.sandbox.boxes import Boxes
from executor_service.sandbox.host import Host
from executor_service.sandbox.report import Plan, SandboxFailure
from executor_service.server.plans import minimal_environment
from fairbox.errors import FairboxError

__all__ = ["Capabilities", "LanguageFacts", "LevelFacts", "probe", "unavailable"]

_LIMITS = Limits(
    wall_time_s=20.0,
    cpu_time_s=20.0,
    memory_bytes=256 << 20,
    processes=16,
    open_files=64,
    output_bytes=64 << 10,
    file_bytes=1 << 20,
    disk_bytes=1 << 20,
    return_bytes=0,
)
_SYSCTLS = (
    "user/max_user_namespaces",
    "kernel/unprivileged_userns_clone",
    "kernel/apparmor_restrict_unprivileged_userns",
)


@dataclass(frozen=True, slots=True)
class LevelFacts:
    """One isolation level."""

    level: IsolationLevel
    available: bool
    reason: str = ""
    """Why not."""


@dataclass(frozen=True, slots=True)
class LanguageFacts:
    """One language."""

    name: str
    installed: bool
    version: str = ""
    reason: str = ""
    """Why not."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this server offers."""

    levels: tuple[LevelFacts, ...]
    """Strongest first."""
    languages: tuple[LanguageFacts, ...]
    """By name."""

    @property
    def installed(self) -> frozenset[str]:
        return frozenset(facts.name for facts in self.languages if facts.installed)


async def probe(host: Host, boxes: Boxes) -> Capabilities:
    """Raises SandboxFailure where no sandbox works."""
    languages = [await _language(host, boxes, spec) for spec in LANGUAGES.values()]
    others = [level for level in IsolationLevel if level is not IsolationLevel.NAMESPACES]
    levels = [LevelFacts(IsolationLevel.NAMESPACES, available=True)]
    levels += [LevelFacts(level, available=False, reason="not offered by this version") for level in reversed(others)]
    return Capabilities(tuple(levels), tuple(sorted(languages, key=lambda facts: facts.name)))


def unavailable(host: Host, minimum: IsolationLevel, failure: SandboxFailure) -> FairboxError:
    """One sentence for a machine on which no level of at least `minimum` works."""
    return FairboxError(
        f"isolation level 'namespaces' does not work here, and no other level of at least '{minimum}' is offered: "
        f"{failure}; {_advice(host)}"
    )


async def _language(host: Host, boxes: Boxes, spec: LanguageSpec) -> LanguageFacts:
    plan = Plan(tuple(spec.command(spec.probe, host.python)), minimal_environment(host), _LIMITS, PYTHON_BASE)
    try:
        async with boxes.take(plan) as sandbox:
            report = await sandbox.run()
    except SandboxFailure as failure:
        if failure.stage != "exec":
            raise
        return LanguageFacts(spec.name, installed=False, reason=f"{plan.argv[0]} can't be started: {failure}")
    said = (report.stdout.text or report.stderr.text).strip().splitlines()
    if report.killed or report.code or report.signal:
        reason = f"{' '.join(plan.argv)} failed with exit code {report.code}, signal {report.signal}"
        return LanguageFacts(spec.name, installed=False, reason=reason)
    return LanguageFacts(spec.name, installed=True, version=said[0] if said else "")


def _advice(host: Host) -> str:
    if host.privileged:
        capabilities = "CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_SETUID, CAP_SETGID, CAP_SETPCAP, CAP_CHOWN and CAP_KILL"
        return f"root needs {capabilities}, and a seccomp profile that lets it mount"
    values = []
    for name in _SYSCTLS:
        path = Path("/proc/sys") / name
        value = path.read_text(encoding="ascii").strip() if path.exists() else "absent"
        values.append(f"{name.replace('/', '.')} ({value})")
    return f"look at {', '.join(values)}, and at the container's seccomp profile"
