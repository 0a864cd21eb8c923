"""Facts about this machine on which isolation depends: kernel, security modules, control groups, memory.

Invariants: looking changes nothing and needs no privilege; what can't be read is as if it were not there. It judges
nothing: `findings` says what the facts mean, and `machine.levels` whether a level works.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from executor_service.guest.walls import landlock
from executor_service.model import IsolationLevel
from executor_service.sandbox.groups import LEAF

CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_ADMIN": 21,
}
"""Capabilities that a server needs as root, with their numbers."""
MAX_USER_NAMESPACES = "user.max_user_namespaces"
USERNS_CLONE = "kernel.unprivileged_userns_clone"
APPARMOR_USERNS = "kernel.apparmor_restrict_unprivileged_userns"
SYSCTLS = (MAX_USER_NAMESPACES, USERNS_CLONE, APPARMOR_USERNS)
"""Settings that restrict user namespaces; only some distributions have the last two."""
_HARMLESS = "/proc/sys/fs/binfmt_misc"
"""A mount that covers nothing: what is below it is always empty."""


class Where(StrEnum):
    """Container that this process is in: none that is known, one of Docker or podman, or a pod."""

    HOST = "host"
    DOCKER = "docker"
    PODMAN = "podman"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class LevelCapabilities:
    """One isolation level, as it was tried."""

    level: IsolationLevel
    available: bool
    reason: str = ""
    """Why not."""
    number: int = 0
    """The errno of the step that failed; 0: none."""
    landlock: int = 0
    """Version of Landlock that level `landlock` goes by."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Control groups as this process has them."""

    version: int = 0
    """2, or 1; 0: none is mounted."""
    path: str = ""
    """The group that others are made below, from the root of the hierarchy."""
    controllers: tuple[str, ...] = ()
    """Controllers that the group can hand down."""
    works: bool = False
    """True if boxes get groups."""
    wanted: bool = True
    """False: `cgroups` is none."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about the machine. The defaults are those of a machine that restricts nothing."""

    kernel: tuple[int, int] = (0, 0)
    """Version of Linux."""
    release: str = ""
    """The whole of it."""
    where: Where = Where.HOST
    root: bool = False
    """True if programs get uids that root assigns, and no user namespaces."""
    initial: bool = True
    """True if this is the user namespace of the machine itself."""
    lacking: tuple[str, ...] = ()
    """Capabilities of `CAPABILITIES` that this process has not."""
    sysctls: dict[str, int] = field(default_factory=dict)
    """Values of those of `SYSCTLS` that exist, by name."""
    seccomp: bool = False
    """True if a filter of system calls is on this process."""
    apparmor: str = ""
    """The profile that confines this process, e.g. `docker-default`; empty: none does."""
    selinux: bool = False
    """True if SELinux enforces."""
    chroot: bool = False
    """True if the root is not a mount."""
    covered: tuple[str, ...] = ()
    """Paths below /proc that other mounts cover."""
    landlock: int = 0
    """Version; 0: there is none."""
    landlock_errno: int = 0
    """Why there is none."""
    lsm: str = ""
    """Security modules that are on, with `,` between them; empty: unknown."""
    groups: GroupFacts = GroupFacts()
    systemd_user: bool = False
    """True if this user has a systemd that can be asked for a scope."""
    memory_bytes: int = 0
    """Bytes of memory of the machine, or of this process's group if that may have less."""
    swap_bytes: int = 0
    shm_bytes: int = 0
    """Size of /dev/shm; 0: there is none."""
    overlays: bool = True
    """True if this kernel has overlayfs, or can load it as far as is known here."""
    python: str = ""
    """The interpreter of programs."""
    private: str = ""
    """A folder above the interpreter that other users may not enter; empty: they may read it."""


def look(*, python: str, root: bool, cgroups: str = "none") -> Machine:
    """Looks. `python` and `root` are those of the host, `cgroups` the executor's setting."""
    status = dict(line.split(":\t", 1) for line in _lines("/proc/self/status") if ":\t" in line)
    held = int(status.get("CapEff", "0"), 16)
    memory = dict(re.findall(r"^(\w+): +(\d+) kB", "\n".join(_lines("/proc/meminfo")), re.MULTILINE))
    mounts = [line.split()[4] for line in _lines("/proc/self/mountinfo")]
    version = landlock.abi()
    number = 0 if version else ctypes.get_errno()
    groups = _groups(cgroups)
    bound = _number(f"/sys/fs/cgroup{groups.path}/memory.max")
    total = int(memory.get("MemTotal", 0)) << 10
    return Machine(
        kernel=_kernel(platform.release()),
        release=f"Linux {platform.release()}",
        where=_where(),
        root=root,
        initial=[line.split() for line in _lines("/proc/self/uid_map")] == [["0", "0", "4294967295"]],
        lacking=tuple(name for name, bit in CAPABILITIES.items() if not held >> bit & 1),
        sysctls=dict(_sysctls()),
        seccomp=status.get("Seccomp", "0").strip() == "2",
        apparmor=_apparmor(),
        selinux=_text("/sys/fs/selinux/enforce") == "1",
        chroot=bool(mounts) and "/" not in mounts,
        covered=tuple(mount for mount in mounts if mount.startswith("/proc/") and mount != _HARMLESS),
        landlock=version,
        landlock_errno=number,
        lsm=_text("/sys/kernel/security/lsm"),
        groups=groups,
        systemd_user=Path(os.environ.get("XDG_RUNTIME_DIR", "/nowhere"), "systemd/private").exists(),
        memory_bytes=min(total, bound) if bound else total,
        swap_bytes=int(memory.get("SwapTotal", 0)) << 10,
        shm_bytes=_size("/dev/shm"),  # noqa: S108 - it is looked at
        overlays=_overlays(),
        python=python,
        private=_private(python),
    )


def _kernel(release: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _where() -> Where:
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return Where.KUBERNETES
    if Path("/run/.containerenv").exists():
        return Where.PODMAN
    return Where.DOCKER if Path("/.dockerenv").exists() else Where.HOST


def _sysctls() -> Iterator[tuple[str, int]]:
    for name in SYSCTLS:
        value = _number(f"/proc/sys/{name.replace('.', '/')}")
        if value is not None:
            yield name, value


def _apparmor() -> str:
    if _text("/sys/module/apparmor/parameters/enabled") != "Y":
        return ""
    current = _text("/proc/self/attr/apparmor/current") or _text("/proc/self/attr/current")
    return "" if current.endswith(("unconfined", "(unconfined)")) else current.partition(" ")[0]


def _groups(setting: str) -> GroupFacts:
    """Looks at version 2 without a trial: whether groups can be made is a matter of permissions, and making one here
    would move this process and others."""
    own = dict(line.split(":", 2)[1:] for line in _lines("/proc/self/cgroup"))
    mounts = [line.split() for line in _lines("/proc/self/mountinfo")]
    mounted = next((words for words in mounts if words[words.index("-") + 1] == "cgroup2"), None)
    legacy = sorted(name for name in own if name)
    if setting == "none":
        return GroupFacts(wanted=False)
    if legacy or mounted is None:
        return GroupFacts(1, next(iter(own.values())), tuple(legacy)) if legacy else GroupFacts()
    inside, point = mounted[3:5]
    path = os.path.relpath(own.get("", "/"), inside) if setting == "auto" else setting.strip("/")
    folder = Path(point) / path
    if folder.name == LEAF:
        folder = folder.parent
    while not folder.exists() and folder != Path(point):
        folder = folder.parent
    shown = f"/{os.path.relpath(folder, point)}".removesuffix("/.") or "/"
    controllers = tuple(_text(folder / "cgroup.controllers").split())
    files = (folder, folder / "cgroup.procs", folder / "cgroup.subtree_control")
    may = ".." not in Path(path).parts and all(os.access(file, os.W_OK) for file in files)
    works = may and bool({"memory", "pids"} & set(controllers))
    return GroupFacts(2, shown, controllers, works=works)


def _overlays() -> bool:
    if any(line.split()[-1:] == ["overlay"] for line in _lines("/proc/filesystems")):
        return True
    modules = f"/lib/modules/{platform.release()}"
    return any("/overlay.ko" in _text(f"{modules}/{name}") for name in ("modules.builtin", "modules.dep"))


def _private(python: str) -> str:
    for folder in reversed(Path(python).parents) if python else ():
        if folder.exists() and not folder.stat().st_mode & 0o001:
            return str(folder)
    return ""


def _size(folder: str) -> int:
    try:
        facts = os.statvfs(folder)
    except OSError:
        return 0
    return facts.f_blocks * facts.f_frsize


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip("\n\0 ")
    except (OSError, UnicodeDecodeError):
        return ""


def _lines(path: str) -> list[str]:
    return _text(path).splitlines()


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None
