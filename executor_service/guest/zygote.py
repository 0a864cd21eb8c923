"""A zygote: an interpreter with its libraries loaded, from which the init of each box is forked.

Two processes: the outer one makes the namespaces and waits, and dies with the server; the inner one is process 1 of a
pid namespace that holds everything below, so that its death is the death of all boxes. It is started afresh with the
environment of programs and holds nothing of the server: what it has in memory, programs can read.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import signal
import socket
import sys

from executor_service.guest import services
from executor_service.guest.init import serve
from executor_service.guest.program import prepare_interpreter
from executor_service.guest.rehearsal import learn, rehearse
from executor_service.guest.walls import confine, tree
from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls.without_namespaces import sweep
from executor_service.guest.warm import fill_free_lists, seeds, skip_at_fork
from executor_service.guest.warm.arenas import gathered
from executor_service.guest.warm.packages import warm
from executor_service.guest.worker import IGNORED_BY_PYTHON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from executor_service.guest.program import PythonProgram
    from executor_service.guest.protocol.spec import BoxSpec

MAX_MESSAGE = 256 << 10
"""Largest message on a control socket: the description of a root with many folders is far below."""

_held: list[object] = []
"""In a worker: taking it apart costs more than keeping it."""


def main(control_fd: int, *, privileged: bool, bare: bool = False, mapped: bool = False) -> PythonProgram:
    """Serves until the server is gone. Returns in a worker that is to be a Python program, and only there. `mapped`:
    this process has its user namespace already."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    # Dies with the server; the server closes its end of the control socket too, which covers the moment before this.
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
    if bare:
        tree.adopt()
        handle = os.pidfd_open(os.getpid())
        socket.send_fds(control, [b'{"type": "started"}'], [handle])
        os.close(handle)
        return _inner(control, privileged=privileged, bare=True)
    stage = "user namespace"
    try:
        uid, gid = os.geteuid(), os.getegid()
        if not privileged and not mapped:
            sys_.unshare(sys_.CLONE_NEWUSER)
            confine.write_identity_map(inside=0, outside=uid, outside_gid=gid)
            stage = "interpreter"
            _protect_interpreter(control)
            sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of credentials clears it
        stage = "pid namespace"
        sys_.unshare(sys_.CLONE_NEWPID)
        inner = os.fork()
    except OSError as error:
        _fail(control, stage, error.errno or 0, str(error))
    if inner == 0:
        return _inner(control, privileged=privileged, bare=False)
    handle = os.pidfd_open(inner)
    socket.send_fds(control, [b'{"type": "started"}'], [handle])
    control.close()
    os.closerange(0, handle + 1)
    os.waitpid(inner, 0)
    os._exit(0)


def _protect_interpreter(control: socket.socket) -> None:
    """Starts again, from a mount that can't be written, if the interpreter's file belongs to the user of programs.

    /proc/self/exe leads programs to that file around the mounts of their box, and an owner may change a file's mode
    and times."""
    path = os.readlink("/proc/self/exe")
    if os.stat(path).st_uid != os.geteuid():
        return
    sys_.unshare(sys_.CLONE_NEWNS)
    sys_.mount(path, path, None, sys_.MS_BIND)
    sys_.restrict_mount(path, sys_.MOUNT_ATTR_RDONLY, recursive=False)
    with open("/proc/self/cmdline", "rb") as file:
        *argv, mode, room = file.read().split(b"\0")[:-1]
    control.set_inheritable(True)
    os.execv(path, [*argv, b"mapped-" + mode, room])  # noqa: S606 - this very command


def _take_no_signals_over() -> None:
    """Resets signals the server's parent let it ignore (nohup: SIGHUP; a shell's background: SIGINT), for programs.

    A signal from inside a pid namespace reaches its process 1 only if that has a handler; for SIGINT Python set one.
    """
    for number in signal.valid_signals().difference(IGNORED_BY_PYTHON):
        if number == signal.SIGINT or signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _fail(control: socket.socket, stage: str, number: int, text: str) -> NoReturn:
    try:
        control.send(json.dumps({"type": "failed", "stage": stage, "errno": number, "error": text}).encode())
    finally:
        os._exit(1)


def _inner(control: socket.socket, *, privileged: bool, bare: bool) -> PythonProgram:
    stage = "profile"
    try:
        sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
        _take_no_signals_over()
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, 0)  # standard input of programs that are given none: to be read and nothing else
        os.close(null)
        head = json.loads(control.recv(MAX_MESSAGE))
        with gathered():
            if not head["lean"]:
                skip_at_fork.spare()
            services.load(lean=head["lean"])  # their files are not in the sandbox
            missing = warm(head["packages"], head["folder"], lean=head["lean"])
            seeds.learn()
            prepare_interpreter(head["work"], head["main"])
            rehearse(head["folder"])
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            raise RuntimeError(f"{threads} threads run after {', '.join(head['packages'])} were loaded; must be one")
        zygote = _Zygote(control, privileged=privileged, bare=bare, seccomp=bytes.fromhex(head["seccomp"]))
        gc.collect()
        fill_free_lists.fill()
        gc.freeze()
        learn(head["folder"], head["packages"])
        control.send(json.dumps({"type": "warm", "missing": missing}).encode())
        return zygote.serve()
    except EOFError:
        os._exit(0)  # the server is gone
    except BaseException as error:  # reported by stage; a forked child must not unwind
        _fail(control, stage, getattr(error, "errno", None) or 0, f"{type(error).__name__}: {error}")


class _Zygote:
    def __init__(self, control: socket.socket, *, privileged: bool, bare: bool, seccomp: bytes) -> None:
        self._control = control
        self._privileged = privileged
        self._bare = bare
        self._seccomp = seccomp
        self._inits: set[int] = set()
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def serve(self) -> PythonProgram:
        """Forks an init for each message; returns in workers alone."""
        wakeup, end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(end, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        while True:
            ready = [handle for handle, _ in poll.poll()]
            if wakeup in ready:
                os.read(wakeup, 4096)
                self._reap()
                if self._bare:
                    sweep(self._inits)
            if self._control.fileno() in ready:
                data, handles, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 2, socket.MSG_CMSG_CLOEXEC)
                if not data:
                    raise EOFError
                if len(handles) < 2:  # the kernel drops descriptors that this process has no room for
                    self._refuse(handles, os.strerror(errno.EMFILE))
                    continue
                program = self._box(json.loads(data), handles)
                if program is not None:
                    _held.append(self)
                    return program

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._inits:
                self._inits.remove(pid)
                self._bury(status)

    def _bury(self, status: int) -> None:
        """Says how an init has ended where nobody wanted it: those in namespaces are killed by the server."""
        if os.WIFSIGNALED(status) and (self._bare or os.WTERMSIG(status) != signal.SIGKILL):
            _say(f"the init of a box was killed by signal {os.WTERMSIG(status)}")

    def _box(self, head: dict[str, Any], handles: list[int]) -> PythonProgram | None:
        try:
            # unshare() takes effect for children of a process that is in its own pid namespace alone.
            if not self._bare:
                sys_.setns(self._own, sys_.CLONE_NEWPID)
                sys_.unshare(sys_.CLONE_NEWPID)
            init = os.fork()
        except OSError as error:
            self._refuse(handles, str(error))
            return None
        if init == 0:
            os.close(self._own)
            self._control.close()
            control = socket.socket(fileno=handles[0])
            spec: BoxSpec = head  # type: ignore[assignment]
            return serve(control, handles[1], spec, privileged=self._privileged, bare=self._bare, seccomp=self._seccomp)
        os.close(handles[1])
        self._inits.add(init)
        with socket.socket(fileno=handles[0]) as server:
            self._hand_over(server, init)
        return None

    def _hand_over(self, server: socket.socket, init: int) -> None:
        """Gives the server its box, or ends the box where the server has given it up meanwhile."""
        pidfd = -1
        try:
            # The pidfd of a pid namespace's init is readable when every process of the namespace is dead.
            pidfd = os.pidfd_open(init)
            socket.send_fds(server, [b'{"type": "init"}'], [pidfd])
        except OSError as error:
            if pidfd < 0:
                _say(f"a box can't be watched: {error}")
            self._inits.remove(init)  # nobody asks how it has ended
            os.kill(init, signal.SIGKILL)  # it was not reaped, so the number is its own; it has no program yet
        finally:
            if pidfd >= 0:
                os.close(pidfd)

    def _refuse(self, handles: list[int], why: str) -> None:
        """Tells the server by the end of its socket that there will be no box."""
        for handle in handles:
            os.close(handle)
        _say(f"a box can't be started: {why}")


def _say(text: str) -> None:
    """To the server's log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _nothing(*_: object) -> None:
    """A handler, so that the signal wakes a poll."""
