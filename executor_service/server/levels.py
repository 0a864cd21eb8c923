"""Which isolation levels work here, found out by having a program try to get out of each, before the server listens.

Invariants: a level is available only if a program ran at it and could do none of what it tried; the server takes the
strongest that is available and allowed, and refuses to start below `min_isolation`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from executor_service.languages import PYTHON_BASE
from executor_service.model import InputFile, IsolationLevel, Limits
from executor_service.sandbox.boxes import Boxes
from executor_service.sandbox.host import Host
from executor_service.sandbox.report import Mode, Plan, SandboxFailure
from executor_service.sandbox.template import Profile
from executor_service.server.plans import minimal_environment
from fairbox.clock import Clock
from fairbox.errors import ConfigError, FairboxError

AUTO = "auto"
OFFERED = (IsolationLevel.NAMESPACES, IsolationLevel.LANDLOCK)
"""Strongest first."""
_SYSCTLS = (
    "user/max_user_namespaces",
    "kernel/unprivileged_userns_clone",
    "kernel/apparmor_restrict_unprivileged_userns",
)
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
_ATTEMPTS = b"""
import os, signal, socket, sys
folder, server, port, name = sys.argv[1:]
attempts = {
    "read a file of the host": lambda: open(folder + "/secret").read(),
    "write a file of the host": lambda: open(folder + "/written", "w"),
    "connect to a port of the host": lambda: socket.create_connection(("127.0.0.1", int(port)), timeout=5),
    "connect to a socket of the host": lambda: socket.socket(socket.AF_UNIX).connect("\\0" + name),
}
# Whether that reached the server is the server's to say: by this number a program may know a process of its own.
try: os.kill(int(server), signal.SIGURG)
except OSError: pass
def works(attempt):
    try: attempt()
    except OSError: return False
    return True
print(", ".join(name for name, attempt in attempts.items() if works(attempt)) or "nothing")
"""


@dataclass(frozen=True, slots=True)
class LevelFacts:
    """One isolation level."""

    level: IsolationLevel
    available: bool
    reason: str = ""
    """Why not."""


async def try_level(host: Host, clock: Clock) -> LevelFacts:
    """Runs a program at the level of `host` that tries to get out."""
    try:
        could = await _attempt(host, clock)
    except SandboxFailure as failure:
        return LevelFacts(host.level, available=False, reason=str(failure))
    if could != "nothing":
        return LevelFacts(host.level, available=False, reason=f"a program could {could}")
    return LevelFacts(host.level, available=True)


async def _attempt(host: Host, clock: Clock) -> str:
    boxes = Boxes(
        host,
        clock,
        profiles=[Profile(PYTHON_BASE)],
        env=minimal_environment(host),
        limits=_LIMITS,
        spare=0,
        most=1,
    )
    with _bait() as arguments, _signalled() as signals:
        plan = Plan(
            ("main.py", *arguments),
            minimal_environment(host),
            _LIMITS,
            PYTHON_BASE,
            mode=Mode.MAIN,
            files=(InputFile("main.py", _ATTEMPTS),),
        )
        async with boxes, boxes.take(plan) as sandbox:
            report = await sandbox.run()
    if signals:
        return "signal the server"
    return report.stdout.text.strip() or f"not even be run: {report.stderr.text.strip()[-500:]}"


@contextlib.contextmanager
def _bait() -> Iterator[tuple[str, str, str, str]]:
    """What everybody on this machine can reach, and a program must not: a folder, a process, two sockets."""
    name = f"fairbox-{secrets.token_hex(8)}"
    with (
        tempfile.TemporaryDirectory(prefix="fairbox-bait-") as folder,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        Path(folder).chmod(0o777)
        Path(folder, "secret").write_text("x", encoding="ascii")
        abstract.bind(f"\0{name}")
        abstract.listen()
        yield folder, str(os.getpid()), str(listener.getsockname()[1]), name


@contextlib.contextmanager
def _signalled() -> Iterator[list[int]]:
    """Signals that reach this process meanwhile and that nobody else sends: by default they are ignored."""
    received: list[int] = []
    before = signal.signal(signal.SIGURG, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        signal.signal(signal.SIGURG, before)


def choose(facts: Sequence[LevelFacts], wanted: str, minimum: IsolationLevel, host: Host) -> IsolationLevel:
    """The strongest level that is available, wanted and at least `minimum`. FairboxError in one sentence."""
    order = list(IsolationLevel)
    for fact in facts:
        allowed = order.index(fact.level) >= order.index(minimum) and wanted in (AUTO, fact.level.value)
        if fact.available and allowed:
            return fact.level
    whys = [
        f"{fact.level.value}: {fact.reason or 'works, but isolation and min_isolation exclude it'}" for fact in facts
    ]
    worst = wanted if wanted != AUTO else facts[0].level.value
    raise FairboxError(
        f"isolation level '{worst}' does not work here, and no other level of at least '{minimum.value}' is allowed: "
        f"{'; '.join(whys)}; {_advice(host)}"
    )


def no_longer(host: Host, failure: SandboxFailure) -> FairboxError:
    """For a level that worked when it was tried."""
    return FairboxError(f"isolation level '{host.level.value}' worked when it was tried, and then not: {failure}")


@contextlib.contextmanager
def scratch_folder(parent: str) -> Iterator[str]:
    """A folder of this server's for the folders of uses: others may pass through it and not look around."""
    try:
        folder = tempfile.mkdtemp(prefix="fairbox-", dir=parent or None)
        Path(folder).chmod(0o711)
    except OSError as error:
        raise ConfigError(f"scratch is {parent!r}, which can't be used: {error}") from None
    try:
        yield os.path.realpath(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
