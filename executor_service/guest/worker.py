"""A worker: forked ahead of the request, confined, waiting for what to run; serves one use. In a box with an image it
takes its identity, and the filter, when it has been told which user of the image it is to be. A worker beside another
one of the use is forked when it is wanted, and is confined in the same way.

It is told what to run by the server alone, over a socket that the init can't read. Having got it, it writes the files,
waits for `go`, says to the init that the program starts, closes what it holds, and becomes the program: by running it
in this interpreter, by exec, or by serving frames. Whatever fails before is told to the init, by stage.

Each function and object that a worker touches is a page of the zygote that the kernel has to copy for it, at about
2 us: what can be prepared is prepared by the init, and what is left is written flat.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import resource
import signal
import socket
import time

from executor_service.guest import services
from executor_service.guest.program import PythonProgram, restore_interpreter
from executor_service.guest.protocol import wire
from executor_service.guest.protocol.status_page import StatusPages
from executor_service.guest.users import UnknownUser, User, enter_image
from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls.confine import Confinement, join_groups, lead_session, limit, take_identity
from executor_service.guest.walls.files import write_files
from executor_service.guest.warm import prefault, skip_at_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from executor_service.guest.protocol.spec import Task

_DATA = 3
_KEPT = 4
"""Descriptor at which an ordinary user's worker has, until it is confined, a writable proc, or its supervisor."""
_CHANNEL = 240
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""As every Python program has it; what is started by exec does not."""
GO = b"G"
"""Byte that the server sends after the task, when the program may start."""


class Socket(_socket.socket):
    """The server's socket, in a worker. The init makes it ahead, while another socket has its number."""

    def __init__(self) -> None:
        nowhere = _socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        os.dup2(nowhere.fileno(), _DATA, inheritable=False)
        nowhere.close()
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM, 0, _DATA)


class BesidePages(StatusPages):
    """Stand-in for a worker beside another one, of which the init wants to know nothing: the server hears over its
    socket why it can't start, and its first frame says that it has."""

    def __init__(self, control: Socket) -> None:
        self._control = control

    def start(self, now: float, used_s: float, *, changed_ns: int, collects: bool) -> None:
        """Nobody looks."""

    def give_up(self) -> None:
        """There are none."""

    def fail(self, stage: str, number: int, text: str) -> NoReturn:
        self._control.sendall(wire.encode({"type": "lacking", "stage": stage, "reason": wire.short(text)}))
        os._exit(127)


def become(confinement: Confinement, streams: list[int], pages: StatusPages, control: Socket) -> PythonProgram:
    """Returns for a Python program, and only for that; bootstrap.py then runs it."""
    stage = "control groups"
    try:
        join_groups(confinement)
        prefault.copy()  # after the group of memory, which then counts them
        stage = "descriptors"
        _arrange(streams, confinement)
        lead_session()
        in_image = confinement.image_owner is not None
        if not in_image:
            stage = "identity"
            take_identity(confinement)
            stage = "filter"
            _install_filter(confinement)
        restore_interpreter()
        skip_at_fork.as_usual()
        stage = "request"
        head, blob = wire.receive(control)
        if in_image:  # who it is to be, it is told now
            stage = "identity"
            _name(enter_image(confinement, head["user"]), head)
            stage = "filter"
            _install_filter(confinement)
            stage = "request"
        return _task(head, blob, control, pages, confinement)  # type: ignore[arg-type]
    except EOFError:
        os._exit(0)  # the server is gone, or wants this worker no more
    except UnknownUser as error:
        pages.fail("user", 0, str(error))
    except BaseException as error:  # a forked child must not unwind into its parent's code
        pages.fail(stage, getattr(error, "errno", None) or 0, f"{type(error).__name__}: {error}")


def _name(user: User, head: wire.Head) -> None:
    """Puts a user of the image into the environment of its program, where it says nothing else."""
    head["env"].setdefault("HOME", user.home)
    if head["user"] and user.name:
        head["env"].setdefault("USER", user.name)


def _task(task: Task, blob: bytes, control: Socket, pages: StatusPages, confinement: Confinement) -> PythonProgram:
    view = memoryview(blob)
    if confinement.bare is not None:
        confinement.bare.relocate(task, privileged=confinement.privileged)
    os.chdir(task["work"])
    work = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    write_files(work, task["files"], view[task["stdin_size"] :])
    changed_ns = os.fstat(work).st_ctime_ns
    os.close(work)
    if task["folder"]:
        _start_in(task["folder"], pages)
    if task["stdin_size"]:
        _stdin(view[: task["stdin_size"]], reopen=confinement.bare is None)
    number = -1
    if task["mode"] == "serve":
        # Out of the way of the numbers that a program's own files get, and before a limit forbids it.
        number = fcntl.fcntl(_DATA, fcntl.F_DUPFD_CLOEXEC, _CHANNEL)
    for name, value in task["rlimits"].items():
        limit(getattr(resource, name), value)
    if control.recv(1) != GO:
        os._exit(0)
    if task["talks"]:
        os.dup2(_DATA, 0)  # what the server sends from here on is its standard input
    if task["mode"] == "exec":
        _exec(task, pages, changed_ns, confinement.joined_s)
    source = blob[task["stdin_size"] :][: task["files"][0]["size"]] if task["mode"] == "main" else b""
    program = PythonProgram(task["argv"], task["env"], source, pages)
    if confinement.bare is not None:
        program.move(task["work"])
    used_s = time.process_time() - confinement.joined_s
    pages.start(time.monotonic(), used_s, changed_ns=changed_ns, collects=task["collects"])
    pages.give_up()
    if task["mode"] == "main":
        control.close()
        return program
    control.close()
    program.take_over()
    services.serve(task["entry"], wire.GuestChannel(socket.socket(fileno=number)))
    os._exit(0)


def _start_in(folder: str, pages: StatusPages) -> None:
    """Enters a folder of the image, which is to blame if it can't be had."""
    try:
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
    except OSError as error:
        pages.fail("exec", error.errno or 0, str(error))


def _arrange(streams: list[int], confinement: Confinement) -> None:
    """Standard streams at 0 to 2, the server's socket at 3, and nothing else but what the identity needs.

    The init holds nothing of ours below 5, and an empty input at 0.
    """
    data, out, err = streams
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.dup2(data, _DATA, inheritable=False)
    kept = confinement.proc if confinement.relay is None else confinement.relay.end.fileno()
    if kept >= 0:
        confinement.proc = os.dup2(kept, _KEPT, inheritable=False)
    sys_.close_from(_KEPT + (kept >= 0))


def _install_filter(confinement: Confinement) -> None:
    if confinement.relay is None:
        confinement.filter.install()
    else:
        confinement.relay.hand_over(confinement.filter.install_supervised(), _KEPT)


def _stdin(data: memoryview, *, reopen: bool) -> None:
    """Standard input becomes a file that nobody can change, so that no reader of it sees another's position."""
    handle = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    while data:
        data = data[os.write(handle, data) :]
    os.fchmod(handle, 0o444)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, seals)
    if reopen:
        reader = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(reader, 0)
        os.close(reader)
    else:
        os.lseek(handle, 0, os.SEEK_SET)
        os.dup2(handle, 0)
    os.close(handle)


def _exec(task: Task, pages: StatusPages, changed_ns: int, joined_s: float) -> NoReturn:
    """Execs, or reports why not. Exec takes pages and server's socket away, so the program has nothing of ours."""
    for ignored in IGNORED_BY_PYTHON:
        signal.signal(ignored, signal.SIG_DFL)
    # Its clock starts here: what exec itself takes is the program's.
    used_s = time.process_time() - joined_s
    pages.start(time.monotonic(), used_s, changed_ns=changed_ns, collects=task["collects"])
    try:
        if task["folder"]:
            os.execvpe(task["argv"][0], task["argv"], task["env"])  # noqa: S606 - where an image has it
        os.execve(task["argv"][0], task["argv"], task["env"])  # noqa: S606 - there is no shell
    except OSError as error:
        pages.fail("exec", error.errno or 0, str(error))
