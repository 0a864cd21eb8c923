"""Runs one command beside a session's shell: a process of its own in the same sandbox.

The frames are those of `cells`: `ready` out, `cell` in, `done` out, and that is all. The second argument of the
interpreter is the folder that the session began in, as for `shell`.

Invariants: while the command runs, whatever it starts stays below this process, a daemon too, so that all of it can be
killed with this process; what it leaves when it ends by itself goes on, and then belongs to the init. Nothing is
imported here, because in an image whatever could be found is the image's.
"""

from __future__ import annotations

import os
import resource
import sys
import time

from executor_service.guest.protocol import wire
from executor_service.guest.serve.shell import SIGNALS, fill, start_folder
from executor_service.guest.serve.work_folder import put_files, send_done, split_cell
from executor_service.guest.walls.tree import adopt, resident_bytes, waited_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from executor_service.guest.protocol.wire import GuestChannel, Head

_SHELLS = ("bash", "sh")
"""The first that there is takes the command."""


def serve(channel: GuestChannel) -> None:
    """Serves one command, if it comes."""
    sys.meta_path.clear()
    adopt()
    channel.send({"type": "ready"})
    if (frame := channel.receive()) is not None:
        _run(channel, *frame)


def _run(channel: GuestChannel, head: Head, blob: bytes) -> None:
    work = os.path.dirname(sys.modules["__main__"].__dict__["__file__"])
    command, data, files = split_cell(head, blob)
    try:
        put_files(work, head["files"], files)
        os.chdir(start_folder(work))
        ending: Head = {"exit_code": _exit_code(bytes(command), data)}
    except OSError as error:
        ending = {"problem": wire.short(f"the command could not be started: {error}")}
    facts = {
        "cpu_s": time.process_time() + waited_s(),
        "peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10,
        "resident_bytes": resident_bytes(),
        **ending,
    }
    send_done(channel, work, head, facts)


def _exit_code(command: bytes, data: memoryview) -> int:
    """Runs the command to its end; 128 + signal if one ended it. OSError if there is no shell."""
    actions: list[tuple[Any, ...]] = []
    if data:
        source = os.memfd_create("stdin", os.MFD_CLOEXEC)
        fill(source, data)
        actions.append((os.POSIX_SPAWN_DUP2, source, 0))
    for name in _SHELLS:
        argv = (name, "-c", command)
        try:
            pid = os.posix_spawnp(name, argv, os.environ, file_actions=actions, setpgroup=0, setsigdef=SIGNALS)
            break
        except FileNotFoundError:
            if name == _SHELLS[-1]:
                raise
    while True:
        ended, status = os.wait()  # orphans below it come here too
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
