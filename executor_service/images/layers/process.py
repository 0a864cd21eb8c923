"""Limits and walls of the processes that handle layers, taken on before they look at anything of others."""

from __future__ import annotations

import os
import resource
import signal
import sys

from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls.confine import write_identity_map

MEMORY_BYTES = 1 << 30
"""Address space: headers of an archive are read as a whole."""


def die_with(parent: int) -> None:
    """Ends this process with the one that started it, whose pid is given: it may have died before this."""
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


_NICE = 5
"""Added to the niceness: calls of others come first."""


def limit(*, cpu_s: int, file_bytes: int) -> None:
    """Bounds memory, CPU time and the size of files, and steps back behind the server."""
    os.nice(_NICE)
    for which, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(which, (most, most))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def confine(folder: int) -> None:
    """The folder becomes the root directory. An ordinary user needs a namespace for that, in which modes of what it
    owns forbid it nothing, as they forbid root nothing."""
    if os.geteuid():
        uid, gid = os.geteuid(), os.getegid()
        sys_.unshare(sys_.CLONE_NEWUSER)
        write_identity_map(inside=0, outside=uid, outside_gid=gid)
    sys.meta_path.clear()  # or a module that is imported late would be the layer's
    os.fchdir(folder)
    os.chroot(".")
