"""The processes below the server of `executor_shape`: a template, an init for each slot, a worker for each program.

`python executor_shape_inside.py FOLDER_OF_EXECUTOR_SERVICE CONTROL_FD...` reads what its roots look like from standard
input. As plain as can be: nothing is counted, limited, cleared away or told but the end of a program. What confines is
the executor's own code.
"""

import json
import os
import signal
import socket
import sys


def main() -> None:
    """Forks an init for each control descriptor, and ends with the server."""
    executor, controls = sys.argv[1], map(int, sys.argv[2:])
    for name, folder in (("executor_service", executor), ("executor_service.sandbox", f"{executor}/sandbox")):
        module = type(sys)(name)
        module.__path__ = [folder]  # without what its __init__ would load
        sys.modules[name] = module
    from executor_service.sandbox.inside import syscalls as sys_

    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
    head = json.loads(sys.stdin.buffer.read())
    for control, spec in zip(controls, head["roots"], strict=True):
        sys_.unshare(sys_.CLONE_NEWPID)
        if os.fork() == 0:
            _init(socket.socket(fileno=control), spec, bytes.fromhex(head["seccomp"]))
        # unshare() makes another namespace only for a process that is in its own.
        handle = os.open("/proc/self/ns/pid", os.O_RDONLY)
        sys_.setns(handle, sys_.CLONE_NEWPID)
        os.close(handle)
        os.close(control)
    signal.pause()


def _init(control: socket.socket, spec, seccomp: bytes) -> None:  # type: ignore[no-untyped-def]
    """Process 1 of a slot: one worker after the other, and nothing of one is there when the next begins."""
    from executor_service.sandbox.inside import confine, mounts
    from executor_service.sandbox.inside import syscalls as sys_

    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
    control.set_inheritable(False)
    sys_.unshare(sys_.CLONE_NEWNS | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS | sys_.CLONE_NEWNET)
    mounts.build_root(spec, spec["uid"])
    mounts.enter_root()
    sys_.mount("tmpfs", spec["work"], "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, f"size=64m,uid={spec['uid']},mode=700")
    os.chdir(spec["work"])
    confinement = confine.Confinement(spec["uid"], True, seccomp, [], 0)
    confine.prepare(confinement)
    while True:
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _worker(confinement, theirs, writer)
        try:
            socket.send_fds(control, [b"R"], [ours.fileno(), reader])
        except OSError:
            os._exit(0)  # the server is gone
        for handle in (ours.detach(), theirs.detach(), reader, writer):
            os.close(handle)
        os.waitpid(pid, 0)
        try:
            os.kill(-1, signal.SIGKILL)
            while True:
                os.waitpid(-1, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def _worker(confinement, data: socket.socket, out: int) -> None:  # type: ignore[no-untyped-def]
    from executor_service.sandbox.inside import confine
    from executor_service.sandbox.inside import syscalls as sys_

    try:
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.dup2(data.fileno(), 3)
        sys_.close_from(4)
        os.setsid()
        confine.take_identity(confinement)
        confinement.filter.install()
        source = os.read(3, 65536)
        if source:
            exec(compile(source, "main.py", "exec"), {"__name__": "__main__"})
            sys.stdout.flush()
            os.write(3, b"0")
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
