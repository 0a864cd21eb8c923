"""Turns a freshly forked child of the init into the program: limits, identity, filter, exec.

Invariants: the program has no capability, can gain none, holds descriptors 0 to 2 alone, and is the leader of a session
of its own; whatever fails on the way is told over `report`, which exec closes.
"""

from __future__ import annotations

import os
import resource
import signal

from executor_service.sandbox.inside import syscalls as sys_

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from executor_service.sandbox.inside.spec import Spec

INNER_UID = 1000
"""What the program sees as its uid where the server is an ordinary user."""
_ABOVE = 2
"""Processes of a run outside the program's user namespace: the launcher and the init."""
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def become(spec: Spec, *, privileged: bool, stdin: int, attach: list[int], seccomp: bytes, report: int) -> NoReturn:
    """Never returns."""
    stage = "control groups"
    try:
        for handle in attach:
            os.write(handle, b"0")
        # After it has joined its groups: /proc/self/cgroup then shows `/`, and not the server's groups and pid.
        sys_.unshare(sys_.CLONE_NEWCGROUP)
        stage = "descriptors"
        os.setsid()
        os.dup2(stdin, 0)
        sys_.prctl(sys_.PR_SET_DUMPABLE, 1)  # or its own /proc files would belong to root, the identity map among them
        _prefer_as_victim()
        stage = "resource limits"
        processes = spec["rlimits"].pop("RLIMIT_NPROC")
        for name, value in spec["rlimits"].items():
            _limit(getattr(resource, name), value)
        stage = "identity"
        if privileged:
            _take_uid(spec["uid"])
        else:
            # The limit of this moment bounds what the new namespace adds to the launcher and the init in the one above.
            _limit(resource.RLIMIT_NPROC, processes + _ABOVE)
            _nest_user_namespace()
        _limit(resource.RLIMIT_NPROC, processes)
        sys_.drop_bounding_set()
        if privileged:
            os.setresuid(spec["uid"], spec["uid"], spec["uid"])
        sys_.keep_capabilities()
        sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1)
        stage = "exec"
        os.umask(0o022)
        os.chdir(spec["work"])
        for ignored in _IGNORED_BY_PYTHON:
            signal.signal(ignored, signal.SIG_DFL)
        sys_.close_on_exec_from(3)
        sys_.install_seccomp(seccomp)
        os.execve(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - there is no shell
    except BaseException as error:  # a forked child must not unwind into its parent's code
        number = getattr(error, "errno", None) or 0
        os.write(report, f"{stage}\0{number}\0{error}".encode()[:4000])
    os._exit(127)


def _prefer_as_victim() -> None:
    """When the whole machine runs out of memory, the kernel shall take the program and not its init."""
    handle = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(handle, b"1000")
    os.close(handle)


def _limit(which: int, value: int) -> None:
    """Sets soft and hard limit, as far down as the present hard limit allows."""
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def _take_uid(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)


def _nest_user_namespace() -> None:
    """A user namespace below the init's: RLIMIT_NPROC then counts this run alone, and the init can't be traced."""
    sys_.unshare(sys_.CLONE_NEWUSER)
    write_identity_map(inside=INNER_UID, outside=0)


def write_identity_map(*, inside: int, outside: int, outside_gid: int | None = None) -> None:
    """Maps one uid and one gid of the parent user namespace into this process's new one."""
    gid = outside if outside_gid is None else outside_gid
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {outside} 1"),
        ("gid_map", f"{inside} {gid} 1"),
    ):
        handle = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        os.write(handle, text.encode())
        os.close(handle)
