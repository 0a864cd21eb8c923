"""Which kernel limits stand behind the limits of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from executor_service.guest.meters import SPARE_PROCESSES
from executor_service.model import InputFile, Limits

PAGE = 4096
_ADDRESS_SPACE_BASE = 4 << 30
"""Address space beyond the memory limit: runtimes reserve far more than they use. This is a backstop, not the limit."""
_SPARE_CPU_S = 2
"""Whole seconds by which one process may pass the limit for all; the init notices sooner, this holds if it does not."""
_INODES = 16_384
"""Files and folders that a program may make."""
DEFAULT_INODES = _INODES + 16
"""Inodes of the private folders where a request brings only a few files."""


def resource_limits(limits: Limits, *, reserves: int = 0) -> dict[str, int]:
    """Names and values for setrlimit, beside what no program gets any of (`walls.confine`). `reserves`: as in Plan."""
    return {
        "RLIMIT_AS": 2 * limits.memory_bytes + _ADDRESS_SPACE_BASE + reserves,
        "RLIMIT_CPU": math.ceil(limits.cpu_time_s) + _SPARE_CPU_S,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_NPROC": limits.processes + SPARE_PROCESSES,
    }


def disk_inodes(files: Sequence[InputFile]) -> int:
    """Inodes of the private folders: those of the input files and a fixed number for the program."""
    return max(DEFAULT_INODES, _INODES + sum(file.path.count("/") + 1 for file in files))


def disk_use(files: Sequence[InputFile]) -> int:
    """Bytes that the files take there, in whole pages."""
    return sum(-(-len(file.content) // PAGE) * PAGE for file in files)


def memory_of(limits: Limits, *, apart: bool) -> int:
    """Bytes of memory that a program may use. `apart`: its private folders are memory beside its limit, as no group
    counts them."""
    return limits.memory_bytes + (limits.disk_bytes if apart else 0)
