"""Control groups (version 1): exact limits and counts for the tree of one box.

Invariants: each box has groups of its own, and one use at a time, whose counts begin where those of the last one ended;
a group that can't be made or does not work is never half used: `find_groups()` tries all of it at start, and the
watcher of the box's init stands in for what is missing. Every function here can block while the kernel frees memory,
and belongs in a thread; the limits of a use are set by the init of its box, which nobody else waits for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from executor_service.sandbox.inside.meters import limit_values

if TYPE_CHECKING:
    from executor_service.sandbox.inside.spec import Groups

_PREFIX = "fairbox-"
_LIMITS = {
    "memory": ("memory", "memory.limit_in_bytes"),
    "sockets": ("memory", "memory.kmem.tcp.limit_in_bytes"),
    "all": ("pids", "pids.max"),
}
"""Controller and file of each limit; the init is in the group that counts processes. What connections buffer is counted
apart from all other memory."""
_CHARGED = ("memory.usage_in_bytes", "memory.kmem.tcp.usage_in_bytes")


@dataclass(frozen=True, slots=True)
class GroupTree:
    """Folders, one per controller, below which boxes get their groups. Empty: there are none."""

    folders: Mapping[str, Path]
    reason: str = ""
    """Why there are none."""

    @property
    def works(self) -> bool:
        """Whether boxes have groups."""
        return bool(self.folders)

    def create(self, name: str, *, memory_bytes: int, processes: int) -> RunGroups:
        """Makes the groups of one box."""
        groups = RunGroups({controller: folder / name for controller, folder in self.folders.items()})
        try:
            for folder in groups.folders.values():
                folder.mkdir()
            values = limit_values(memory_bytes, processes)
            for name, path in groups.files()["limits"].items():
                Path(path).write_text(str(values[name]), encoding="ascii")
        except OSError:
            groups.remove()
            raise
        return groups

    def remove(self) -> None:
        """Removes the folders themselves, when the server ends."""
        for folder in self.folders.values():
            _remove_tree(folder)


@dataclass(frozen=True, slots=True)
class RunGroups:
    """The groups of one box."""

    folders: Mapping[str, Path]

    def files(self) -> Groups:
        """What the init of the box reads and writes."""

        def file(controller: str, name: str) -> str:
            folder = self.folders.get(controller)
            return str(folder / name) if folder else ""

        def present(where: Mapping[str, str]) -> dict[str, str]:
            return {name: path for name, path in where.items() if path and Path(path).exists()}

        limits = {name: file(*where) for name, where in _LIMITS.items()}
        return {
            "init": [
                str((folder.parent if name == "memory" else folder) / "tasks") for name, folder in self.folders.items()
            ],
            "attach": [file("memory", "tasks")] if "memory" in self.folders else [],
            "each_use": "",
            "dying": "",
            "reclaim": "",
            "oom": file("memory", "memory.oom_control"),
            "processes": file("pids", "pids.events"),
            "cpu": file("cpuacct", "cpuacct.usage"),
            "peak": file("memory", "memory.max_usage_in_bytes"),
            "limits": present(limits),
            "charged": list(present({name: file("memory", name) for name in _CHARGED}).values()),
        }

    def remove(self) -> bool:
        """Removes them. False while a process in them is not dead."""
        for folder in self.folders.values():
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self.folders.values())


def find_groups(parent: str) -> GroupTree:
    """The controllers that work here, below the server's own groups (`auto`), below `parent`, or none (`none`)."""
    if parent == "none":
        return GroupTree({})
    folders: dict[str, Path] = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in {"memory", "pids", "cpuacct"} & set(controllers.split(",")):
            mount = Path("/sys/fs/cgroup") / controllers
            base = mount / (path if parent == "auto" else parent).lstrip("/")
            with contextlib.suppress(OSError):
                base.mkdir(exist_ok=True)
                _sweep(base)
                folder = base / f"{_PREFIX}{os.getpid()}"
                folder.mkdir(exist_ok=True)
                folders[controller] = folder
    return _working(folders)


def _working(folders: Mapping[str, Path]) -> GroupTree:
    """Those in which a group can be made, limited, read and removed."""
    good = {}
    for controller, folder in folders.items():
        try:
            groups = GroupTree({controller: folder}).create("probe", memory_bytes=64 << 20, processes=8)
            files = groups.files()
            for path in (files["oom"], files["processes"], files["cpu"], files["peak"]):
                if path:
                    Path(path).read_text(encoding="utf-8")
            groups.folders[controller].rmdir()
        except OSError:
            _remove_tree(folder)
        else:
            good[controller] = folder
    return GroupTree(good)


def _sweep(base: Path) -> None:
    """Removes what servers that were killed left behind."""
    for folder in base.glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX)
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _remove_tree(folder)


def _remove_tree(folder: Path) -> None:
    for child in (*folder.glob("*/"), folder):
        if child.is_dir():
            with contextlib.suppress(OSError):
                child.rmdir()
