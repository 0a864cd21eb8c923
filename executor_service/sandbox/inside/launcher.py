"""Starts the init of one run in namespaces of its own, and waits for it.

Order: unshare; fork the init; tell the server its pidfd. The init takes the spec, builds the root, says `ready`; the
server says `go`; the program is started. The launcher holds nothing, and dies with the server; the init dies with the
launcher.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct

from executor_service.sandbox.inside import mounts, program, wire
from executor_service.sandbox.inside import syscalls as sys_
from executor_service.sandbox.inside.files import write_files
from executor_service.sandbox.inside.meters import Meters
from executor_service.sandbox.inside.supervisor import StartError, Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from executor_service.sandbox.inside.spec import Spec

_IFF_UP = 0x1
_SIOCSIFFLAGS = 0x8914


def main(control_fd: int, *, privileged: bool) -> NoReturn:
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    # Dies with the server; the server closes its end of the control socket too, which covers the moment before this.
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
    stage = "user namespace"
    try:
        uid, gid = os.geteuid(), os.getegid()
        if not privileged:
            sys_.unshare(sys_.CLONE_NEWUSER)
            program.write_identity_map(inside=0, outside=uid, outside_gid=gid)
            sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of credentials clears it
        stage = "pid namespace"
        sys_.unshare(sys_.CLONE_NEWPID)
        init = os.fork()
    except OSError as error:
        _fail(control, stage, error.errno or 0, str(error))
    if init == 0:
        _init(control, privileged=privileged)
    handle = os.pidfd_open(init)
    socket.send_fds(control, [wire.encode({"type": "init"})], [handle])
    control.close()
    os.closerange(0, control_fd + 1)
    os.waitpid(init, 0)
    os._exit(0)


def _fail(control: socket.socket, stage: str, number: int, text: str) -> NoReturn:
    try:
        wire.send(control, {"type": "failed", "stage": stage, "errno": number, "error": text})
    finally:
        os._exit(1)


def _init(control: socket.socket, *, privileged: bool) -> NoReturn:
    """Never returns into the launcher's code."""
    stage = "request"
    try:
        sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
        # A signal from inside the namespace reaches its init only where the init has a handler; Python set this one.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        head, blob = wire.receive(control)
        spec: Spec = head  # type: ignore[assignment]
        view = memoryview(blob)
        seccomp, view = bytes(view[: spec["seccomp_size"]]), view[spec["seccomp_size"] :]
        owner = spec["uid"] if privileged else 0
        stage = "standard input"
        stdin = _sealed(view[: spec["stdin_size"]])
        if privileged:
            for number in (1, 2):
                os.fchown(number, owner, owner)  # so that the program can open /dev/stdout
        stage = "control groups"
        meters = Meters(spec["groups"])
        stage = "namespaces"
        sys_.unshare(sys_.CLONE_NEWNS | sys_.CLONE_NEWNET | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS)
        stage = "loopback"
        _loopback_up()
        socket.sethostname("sandbox")
        stage = "mounts"
        mounts.build_root(spec, owner)
        stage = "root"
        mounts.enter_root()
        stage = "files"
        work = os.open(spec["work"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        write_files(work, spec["files"], view[spec["stdin_size"] :], owner)
        del view, blob
        supervisor = Supervisor(control, spec, privileged=privileged, meters=meters, stdin=stdin, seccomp=seccomp)
        wire.send(control, {"type": "ready"})
        stage = "start"
        if wire.receive(control)[0]["type"] != "go":
            os._exit(0)
        ended, contents = supervisor.run(work)
        wire.send(control, dict(ended), contents)
        os._exit(0)
    except StartError as error:
        _fail(control, error.stage, error.number, error.text)
    except EOFError:
        os._exit(0)  # the server is gone, or wants the program no more
    except BaseException as error:  # reported by stage; a forked child must not unwind
        _fail(control, stage, getattr(error, "errno", None) or 0, f"{type(error).__name__}: {error}")


def _sealed(data: memoryview) -> int:
    """A descriptor to read `data` from, which nobody can change. Empty: /dev/null."""
    if not data:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    handle = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    while data:
        data = data[os.write(handle, data) :]
    os.fchmod(handle, 0o444)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, seals)
    reader = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(handle)
    return reader


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
