"""Which isolation levels work here, found out by having a program try to get out of each, before the server listens.

Invariants: a level is available only if a program ran at it and could do none of what it tried; the server takes the
strongest that is available and allowed, and refuses to start below `min_isolation`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from executor_service.config import ExecutorConfig
from executor_service.languages import PYTHON_BASE
from executor_service.machine.facts import LevelCapabilities, look
from executor_service.machine.findings import level_finding
from executor_service.model import InputFile, IsolationLevel, Limits
from executor_service.programs.plans import minimal_environment
from executor_service.programs.toolchains import find_toolchains
from executor_service.sandbox.groups import GroupTree
from executor_service.sandbox.host import Host, inspect_host
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import Mode, Plan, SandboxFailure
from executor_service.sandbox.seccomp import compile_filter
from executor_service.sandbox.zygote import Profile
from executor_service.workspaces.bundles import AT_ONCE
from fairbox.clock import Clock
from fairbox.errors import ConfigError, FairboxError

AUTO = "auto"
OFFERED = (IsolationLevel.NAMESPACES, IsolationLevel.LANDLOCK)
"""Strongest first."""
_BOXES_EACH = 2
"""For each program: a case of a verification runs candidate and checker apart."""
_SPARE_BOXES = 4 + AT_ONCE
"""Beyond those: some are being cleared or made while others run, and bundles are read in some."""
PROBE_LIMITS = Limits(
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
"""Limits of a program that shows whether a level, or a language, works."""
_ATTEMPTS = b"""
import os, signal, socket, sys
folder, server, port, name = sys.argv[1:]
for path in os.__file__, sys.executable:
    try: os.stat(path)
    except OSError: sys.exit("its user may not read " + path + ", of its interpreter: name another in `python`")
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


class Tried(NamedTuple):
    """The host at each level, and what the tries of the levels found, the strongest first."""

    hosts: Mapping[IsolationLevel, Host]
    levels: Sequence[LevelCapabilities]


def most_boxes(config: ExecutorConfig) -> int:
    """Boxes of one profile that may be there at once."""
    return _BOXES_EACH * config.max_concurrent + config.max_sessions + _SPARE_BOXES


async def try_levels(
    config: ExecutorConfig, clock: Clock, *, groups: GroupTree, scratch: str, store: str = ""
) -> Tried:
    """Looks at the machine as `config` says and tries every level. FairboxError if not even that can be done."""
    host = inspect_host(
        python=config.python,
        groups=groups,
        seccomp=compile_filter(),
        boxes=most_boxes(config) * len(config.runtime_profiles()),
        store=store,
    )
    host = find_toolchains(config.offered(), host, config.toolchain_folders())
    hosts = {
        level: replace(host, level=level, scratch=scratch, seccomp=compile_filter(level, host.landlock))
        for level in OFFERED
    }
    return Tried(hosts, [await try_level(hosts[level], clock) for level in OFFERED])


async def try_level(host: Host, clock: Clock) -> LevelCapabilities:
    """Runs a program at the level of `host` that tries to get out."""
    log = logging.getLogger(SandboxPool.__module__)
    log.addFilter(_hide)  # what does not work here is a fact, and nobody's error
    version = host.landlock if host.bare else 0
    try:
        could = await _attempt(host, clock)
    except SandboxFailure as failure:
        return LevelCapabilities(
            host.level, available=False, reason=str(failure), number=failure.number, landlock=version
        )
    finally:
        log.removeFilter(_hide)
    if could != "nothing":
        return LevelCapabilities(host.level, available=False, reason=f"a program could {could}", landlock=version)
    return LevelCapabilities(host.level, available=True, landlock=version)


def _hide(_: logging.LogRecord) -> bool:
    return False


async def _attempt(host: Host, clock: Clock) -> str:
    boxes = SandboxPool(
        host,
        clock,
        profiles=[Profile(PYTHON_BASE)],
        env=minimal_environment(host),
        limits=PROBE_LIMITS,
        spare=0,
        most=1,
    )
    with _bait() as arguments, _signalled() as signals:
        plan = Plan(
            ("main.py", *arguments),
            minimal_environment(host),
            PROBE_LIMITS,
            PYTHON_BASE,
            mode=Mode.MAIN,
            files=(InputFile("main.py", _ATTEMPTS),),
        )
        async with boxes, boxes.take(plan) as sandbox:
            report = await sandbox.run()
    if signals:
        return "signal the server"
    said = report.stderr.text.strip().rpartition("\n")[2]
    return report.stdout.text.strip() or f"not even be run: {said[-500:]}"


@contextlib.contextmanager
def _bait() -> Iterator[tuple[str, str, str, str]]:
    """Things that everybody on this machine can reach, and a program must not: a folder, a process, two sockets."""
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


def allowed(levels: Sequence[LevelCapabilities], config: ExecutorConfig) -> IsolationLevel | None:
    """The strongest level that works and that `isolation` and `min_isolation` allow."""
    order = list(IsolationLevel)
    least = order.index(IsolationLevel(config.min_isolation))
    for facts in levels:
        if facts.available and order.index(facts.level) >= least and config.isolation in (AUTO, facts.level.value):
            return facts.level
    return None


def choose(tried: Tried, config: ExecutorConfig) -> IsolationLevel:
    """The same. FairboxError in one sentence, that of `fairbox doctor`, if there is none."""
    if (level := allowed(tried.levels, config)) is not None:
        return level
    host = tried.hosts[OFFERED[0]]
    machine = look(python=host.python, root=host.privileged)
    found = [level_finding(machine, facts) for facts in tried.levels]
    whys = [
        f"{each.question}: {each.sentence} (change: {each.remedy})"
        if each.remedy
        else f"{each.question}: works, but isolation and min_isolation exclude it"
        for each in found
    ]
    worst = config.isolation if config.isolation != AUTO else found[0].question
    raise FairboxError(
        f"isolation level '{worst}' does not work here, and no other level of at least '{config.min_isolation}' is "
        f"allowed: {'; '.join(whys)}"
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
