"""Runs, in the zygote, what every worker will run: an interpreter is faster, and writes less, the second time.

CPython rewrites the code of a function as it is called, and makes some objects at first use: here once for all workers.
What is run and written to in memory each time is learned as well; see `machine_code` and `prefault`.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
from functools import partial

from executor_service.guest import program
from executor_service.guest.protocol import wire
from executor_service.guest.protocol.status_page import StatusPages
from executor_service.guest.walls import confine, files
from executor_service.guest.warm import machine_code, prefault, seeds
from executor_service.guest.warm.exercises import TYPICAL

_FILE = "main.py"
_TIMES = 40
"""Calls after which CPython has nothing more to rewrite."""


_PROGRAM = "print(1)\n"
"""Program that does only what other programs do as well."""


def rehearse(folder: str) -> None:
    """Leaves nothing behind, in `folder` or elsewhere."""
    _play(folder, _TIMES, _PROGRAM)


def learn(folder: str, packages: list[str]) -> None:
    """Once everything is as workers will find it: what is run by any program that is typical for the packages of the
    profile, and what is written to by all. Those of numpy don't count where pandas is, which uses it."""
    texts = [
        program
        for package in packages
        if package in sys.modules and not (package == "numpy" and "pandas" in packages)
        for program in TYPICAL.get(package, (_PROGRAM,))
    ]
    programs = [partial(_play, folder, 1, each) for each in texts or [_PROGRAM]]
    machine_code.enlarge(*programs)
    prefault.learn(*programs)


def _play(folder: str, times: int, text: str) -> None:
    ours, theirs = socket.socketpair()
    main, pages = sys.modules["__main__"], StatusPages()
    source = text.encode()
    entries = [{"path": _FILE, "size": len(source), "mode": 0o644}]
    head = {"type": "task", "argv": list(sys.argv), "env": dict(os.environ), "files": entries}
    work = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with ours, theirs:
        for _ in range(times):
            ours.sendall(wire.encode(head, len(source)) + source)
            task, blob = wire.receive(theirs)
            files.write_files(work, task["files"], memoryview(blob))
            os.unlink(_FILE, dir_fd=work)
            confine.limit(resource.RLIMIT_CORE, 0)
            seeds.fresh()
            pages.clear()
            played = program.PythonProgram(task["argv"], task["env"], blob, pages)
            played.rehearse()
            sys.modules["__main__"] = main
            gc.collect(0)
    os.close(work)
