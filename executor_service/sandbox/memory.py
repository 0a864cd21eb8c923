"""The memory of the server and all of its programs: how much there is, and whether the kernel has killed for want of
it.

Invariants: a bound of the server's own control group counts, and that of every group above it that can be seen; whether
the kernel has killed is looked at where no group of a box tells, at most as often as somebody asks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fairbox.clock import Clock

LOOK_S = 0.5
"""Seconds between two looks whether the kernel has killed: one takes 35 us."""
_RESERVE = 512 << 20
"""Bytes for the server, its zygotes and interpreters in reserve, which take 300 MB with the scientific packages."""
_LEAST_SHARE = 0.75
"""Least share of the memory for programs: small machines run few of them."""


def memory_bytes() -> int:
    """Bytes that this process and its children can have: of the machine, or of a control group with less."""
    found = re.search(r"^MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    total = int(found[1]) << 10 if found else 1 << 62
    return min([total, *(bound for folder in _groups() if (bound := _number(folder / "memory.max")))])


def room_for_programs(total: int, scratch: str = "") -> int:
    """Bytes of `total` that programs can have together. `scratch`: a folder that they write to, which takes as much
    away as it can hold if it lies in memory; empty: there is none."""
    room = max(total - _RESERVE, int(total * _LEAST_SHARE))
    return max(room - _size_in_memory(scratch), room // 2) if scratch else room


def kernel_kills() -> int:
    """Number of processes that the kernel has killed for want of memory: in the server's group, else on the machine."""
    return _value(_text(_events()), "oom_kill")


@cache
def _events() -> Path:
    """File that tells: found once, as to look through all mounts of a node takes long."""
    found = (folder / "memory.events" for folder in _groups())
    return next((path for path in found if path.exists()), Path("/proc/vmstat"))


@dataclass(slots=True)
class KernelKills:
    """Watches for recent kills by the kernel for want of memory. Somebody calls `look()` every LOOK_S, so a kill may
    seem later than it was by that much."""

    clock: Clock
    count: Callable[[], int] = kernel_kills
    _seen: int | None = None
    _rose_at: float = float("-inf")

    def look(self) -> None:
        """Notes whether there are more than at the last look."""
        now = self.count()
        if self._seen is not None and now > self._seen:
            self._rose_at = self.clock.now()
        self._seen = now

    def during(self, seconds: float) -> bool:
        """Says whether it has killed in the last `seconds`."""
        self.look()
        return self._rose_at >= self.clock.now() - seconds


def _groups() -> Iterator[Path]:
    """Folders of this process's control group of version 2 and of those above it, as far as they can be seen."""
    mounts = [line.split() for line in _text(Path("/proc/self/mountinfo")).splitlines()]
    mounted = next((words for words in mounts if words[words.index("-") + 1] == "cgroup2"), None)
    own = next((line[3:] for line in _text(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")), None)
    if mounted is None or own is None:
        return
    inside, point = mounted[3:5]
    folder = Path(os.path.normpath(Path(point) / os.path.relpath(own, inside)))
    while folder.is_relative_to(point):
        yield folder
        folder = folder.parent


def _size_in_memory(folder: str) -> int:
    """Bytes that the file system of a folder can hold; 0 if it is on a disk."""
    mounts = [line.split() for line in _text(Path("/proc/self/mountinfo")).splitlines()]
    above = [words for words in mounts if Path(folder).resolve().is_relative_to(words[4])]
    if not above or not Path(folder).is_dir() or max(above, key=lambda words: len(words[4]))[-3] != "tmpfs":
        return 0
    facts = os.statvfs(folder)
    return facts.f_blocks * facts.f_frsize


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path).strip()
    return int(text) if text.isdigit() else 0


def _value(text: str, name: str) -> int:
    found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0
