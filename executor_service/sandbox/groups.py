"""Control groups (version 1): exact limits and counts for the tree of one box.

Invariants: each box has groups of its own, and one use at a time, whose counts begin where those of the last one ended;
a group that can't be made or does not work is never half used: `find_groups()` tries all of it at start, and the
watcher of the box's init stands in for what is missing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executor_service.sandbox.inside.spec import Groups

_PREFIX = "fairbox-"
_LEAST_MEMORY = 8 << 20
"""What a worker that waits needs; a limit below can't be set while it lives."""
NO_GROUPS: Groups = {"counting": [], "attach": [], "back": [], "oom": "", "processes": "", "cpu": "", "peak": ""}


@dataclass(frozen=True, slots=True)
class GroupTree:
    """Folders, one per controller, below which boxes get their groups. Empty: there are none."""

    folders: Mapping[str, Path]

    def create(self, name: str, *, memory_bytes: int, processes: int) -> RunGroups:
        """Makes the groups of one box."""
        groups = RunGroups({controller: folder / name for controller, folder in self.folders.items()})
        try:
            for folder in groups.folders.values():
                folder.mkdir()
            groups.limit(memory_bytes=memory_bytes, processes=processes)
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

        return {
            "counting": [str(folder / "tasks") for name, folder in self.folders.items() if name != "memory"],
            "attach": [file("memory", "tasks")] if "memory" in self.folders else [],
            "back": [str(self.folders["memory"].parent / "tasks")] if "memory" in self.folders else [],
            "oom": file("memory", "memory.oom_control"),
            "processes": file("pids", "pids.events"),
            "cpu": file("cpuacct", "cpuacct.usage"),
            "peak": file("memory", "memory.max_usage_in_bytes"),
        }

    def limit(self, *, memory_bytes: int, processes: int) -> None:
        """Other limits. No program may run in them; a worker that waits may."""
        for controller, file, value in _files(memory_bytes, processes):
            if controller in self.folders:
                (self.folders[controller] / file).write_text(str(value), encoding="ascii")

    def remove(self) -> bool:
        """Removes them. False while a process in them is not dead."""
        for folder in self.folders.values():
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self.folders.values())


def _files(memory_bytes: int, processes: int) -> list[tuple[str, str, int]]:
    """Controller, file and value of each limit. The init counts as one process."""
    return [("memory", "memory.limit_in_bytes", max(memory_bytes, _LEAST_MEMORY)), ("pids", "pids.max", processes + 1)]


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
