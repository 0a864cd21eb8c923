"""Control groups (version 2): exact limits and counts for the tree of one box.

    <the server's own group>/
        fairbox-server/      every process that was in the own group, which must be empty to hand controllers down
        fairbox-PID/         one for each server
            inits/           the inits of all boxes, before all programs where processors are scarce
            box-N/           limits and counts of one box
                run/         where the kernel can't reset a peak: made anew for each use, so that its peak is its own

Invariants: a box has one use at a time, whose counts begin where those of the last one ended; groups that can't be made
or do not work are never half used: `find_groups()` tries all of it at start, and the watcher of the box's init stands
in for what is missing. Every function here can block while the kernel frees memory, and belongs in a thread; the limits
of a use are set by the init of its box, which nobody else waits for.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from executor_service.guest.meters import limit_values

if TYPE_CHECKING:
    from executor_service.guest.protocol.spec import Groups

_PREFIX = "fairbox-"
LEAF = "fairbox-server"
"""Group that the server moves itself to, with all else that was in its own group."""
_INITS = "inits"
_CONTROLLERS = ("memory", "pids", "cpu")
_FIRST = "10000"
"""The greatest `cpu.weight`; a box has 100."""
_ROUNDS = 100
"""Processes are moved until none is left; others may be started meanwhile, but hardly so often."""


@dataclass(frozen=True, slots=True)
class GroupTree:
    """The folder below which boxes get their groups. None: there are no groups."""

    folder: Path | None = None
    resets: bool = False
    """True if the kernel can reset a peak (6.12)."""
    reason: str = ""
    """Why there are none, where somebody wanted them."""

    @property
    def works(self) -> bool:
        """True if boxes have groups."""
        return self.folder is not None

    def create(self, name: str, *, memory_bytes: int, processes: int) -> RunGroups:
        """Makes the group of one box."""
        group = RunGroups(self.folder and self.folder / name, self.resets)
        if group.folder is None:
            return group
        try:
            group.folder.mkdir()
            values = limit_values(memory_bytes, processes)
            files = group.files()
            for limit, path in files["limits"].items():
                _write(Path(path), str(values[limit]))
            for file, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                if (group.folder / file).exists():
                    _write(group.folder / file, value)
            if files["each_use"]:
                _write(group.folder / "cgroup.subtree_control", "+memory")
        except OSError:
            group.remove()
            raise
        return group

    def remove(self) -> None:
        """Removes the folder itself, when the server ends."""
        if self.folder is not None:
            _remove_tree(self.folder)


@dataclass(frozen=True, slots=True)
class RunGroups:
    """The group of one box."""

    folder: Path | None
    resets: bool

    def files(self) -> Groups:
        """Paths of the files that the init of the box and its workers read and write."""

        def file(name: str) -> str:
            path = self.folder and self.folder / name
            return str(path) if path and path.exists() else ""

        def present(**files: str) -> dict[str, str]:
            return {name: file(path) for name, path in files.items() if file(path)}

        each_use = str(self.folder) if file("memory.peak") and not self.resets else ""
        return {
            "init": [str(self.folder.parent / _INITS / "cgroup.procs")] if self.folder else [],
            "attach": list(present(box="cgroup.procs").values()) if not each_use else [],
            "each_use": each_use,
            "dying": file("cgroup.stat") if each_use else "",
            "reclaim": file("memory.reclaim") if each_use else "",
            "oom": file("memory.events"),
            "processes": file("pids.events"),
            "cpu": file("cpu.stat"),
            "peak": file("memory.peak") if self.resets else "",
            "limits": present(memory="memory.max", processes="pids.max"),
            "charged": file("memory.current"),
            "used": file("memory.stat"),
        }

    def remove(self) -> bool:
        """Kills what is in it and removes it. False while a process in it is not dead."""
        return self.folder is None or _remove_tree(self.folder)


def find_groups(parent: str) -> GroupTree:
    """A tree below the server's own group (`auto`), below `parent`, or none (`none`)."""
    if parent == "none":
        return GroupTree()
    try:
        base = _own_group() if parent == "auto" else _below_root(parent)
        _sweep(base)
        folder = base / f"{_PREFIX}{os.getpid()}"
        folder.mkdir(exist_ok=True)
        try:
            return _working(folder)
        except OSError:
            _remove_tree(folder)
            raise
    except OSError as error:
        return GroupTree(reason=str(error))


def _own_group() -> Path:
    """The server's own group, able to have others below it."""
    point, root = _mounted()
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    within = os.path.relpath(own, root)
    if within.startswith(".."):
        raise OSError(errno.ENOENT, f"the server's own group {own!r} lies outside of what is mounted at {point}")
    base = point / within
    if base.name == LEAF:
        return base.parent  # a server before this one, or with it, has moved this one
    _hand_down(base)
    return base


def _below_root(path: str) -> Path:
    """The group of that path, able to have others below it, which no process is in."""
    base, _ = _mounted()
    for name in path.strip("/").split("/"):
        _hand_down(base)
        base /= name
        base.mkdir(exist_ok=True)
    _hand_down(base)
    return base


def _mounted() -> tuple[Path, str]:
    """Mount point of version 2, and the group that is the root there."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        about, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            root, point = about.split()[3:5]
            return Path(point), root
    raise OSError(errno.ENOENT, "control groups of version 2 are not mounted")


def _hand_down(group: Path) -> None:
    """Groups below it get its controllers. Raises where they can't have memory or processes."""
    there = (group / "cgroup.controllers").read_text(encoding="ascii").split()
    if not {"memory", "pids"} & set(there):
        raise OSError(errno.ENODEV, f"{group} has no controllers of memory and processes")
    switch = group / "cgroup.subtree_control"
    for controller in _CONTROLLERS:
        if controller in there and controller not in switch.read_text(encoding="ascii").split():
            try:
                _write(switch, f"+{controller}")
            except OSError as error:
                if error.errno == errno.EBUSY:
                    _empty(group)
                    _write(switch, f"+{controller}")
                elif controller != "cpu":  # refused where processes have real-time priorities
                    raise


def _empty(group: Path) -> None:
    """Moves every process of a group into a leaf below it."""
    leaf = group / LEAF
    leaf.mkdir(exist_ok=True)
    for _ in range(_ROUNDS):
        pids = (group / "cgroup.procs").read_text(encoding="ascii").split()
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                _write(leaf / "cgroup.procs", pid)


def _working(folder: Path) -> GroupTree:
    """Tries all that a box needs."""
    _hand_down(folder)
    (folder / _INITS).mkdir(exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        _write(folder / _INITS / "cpu.weight", _FIRST)
    resets = False
    with contextlib.suppress(OSError):
        _write(folder / "memory.peak", "0")
        resets = True
    tree = GroupTree(folder, resets)
    groups = tree.create("probe", memory_bytes=64 << 20, processes=8)
    files = groups.files()
    for path in (files["oom"], files["processes"], files["cpu"], files["peak"], files["charged"]):
        if path:
            Path(path).read_text(encoding="ascii")
    if not groups.remove():
        raise OSError(errno.EBUSY, f"{groups.folder} can't be removed")
    return tree


def _sweep(base: Path) -> None:
    """Removes what servers that were killed left behind."""
    for folder in base.glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX)
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _remove_tree(folder)


def _remove_tree(folder: Path) -> bool:
    """Kills what is in it (Linux 5.14) and removes it. Whether it is gone."""
    with contextlib.suppress(OSError):
        if "populated 1" in (folder / "cgroup.events").read_text(encoding="ascii"):
            _write(folder / "cgroup.kill", "1")
    for child in (*folder.glob("*/*/"), *folder.glob("*/"), folder):
        with contextlib.suppress(OSError):
            child.rmdir()
    return not folder.exists()


def _write(path: Path, value: str) -> None:
    # Never made: what is no file of a group would become one of a folder that is none.
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, value.encode("ascii"))
    finally:
        os.close(handle)
