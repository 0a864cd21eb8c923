"""Takes from a forked child of the init all that a program must not have.

Invariants: afterwards it has no capability and can gain none, leads a session of its own, and what it does is counted.
"""

from __future__ import annotations

import os
import resource
import time

from executor_service.guest.walls import syscalls as sys_

TYPE_CHECKING = False
if TYPE_CHECKING:
    from executor_service.guest.protocol.spec import BoxSpec
    from executor_service.guest.walls.call_relay import CallRelay
    from executor_service.guest.walls.without_namespaces import BareInit

INNER_UID = 1000
"""Uid that a program sees as its own if the server is an ordinary user."""
_NICE = 5
"""Added to the niceness of programs: they must not starve the server."""
_NONE = ("RLIMIT_CORE", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE")
"""Resources that no program gets any of."""


class Confinement:
    """Settings that confine all workers of a box alike."""

    def __init__(
        self,
        spec: BoxSpec,
        privileged: bool,
        seccomp: bytes,
        attach: list[int],
        bare: BareInit | None = None,
        proc: int = -1,
    ) -> None:
        self.uid = spec["uid"]
        self.privileged = privileged
        self.filter = sys_.Filter(seccomp)
        self.attach = attach
        """Files of control groups that take in whoever writes `0`."""
        self.joined_s = 0.0
        """CPU seconds that a worker had used before it was in them: they do not count it."""
        self.bare = bare
        """Instead of namespaces."""
        self.image_owner = None if spec["image"] is None else spec["image"]["owner"]
        """Uid of the host that an image's files, and its programs, belong to; None: there is none."""
        self.proc = -1 if bare or (privileged and self.image_owner is None) else proc
        """A proc that can be written, for who has to write down whom it is."""
        self.relay: CallRelay | None = None
        """Supervisor of signals and forks, if the filter leaves them to it."""


def prepare(confinement: Confinement) -> None:
    """Restricts the init, once, and so all its workers: it needs none of what this takes away."""
    for name in _NONE:
        limit(getattr(resource, name), 0)
    if confinement.privileged:
        os.setgroups([])
        sys_.drop_bounding_set()
    sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1)
    os.umask(0o022)


def join_groups(confinement: Confinement) -> None:
    """In the worker. In the namespace that is made then they are `/` for whoever reads /proc/self/cgroup."""
    for handle in confinement.attach:
        os.pwrite(handle, b"0", 0)
    if confinement.attach:
        confinement.joined_s = time.process_time()
        if not confinement.bare:
            sys_.unshare(sys_.CLONE_NEWCGROUP)


def lead_session() -> None:
    os.setsid()
    os.nice(_NICE)


def take_identity(confinement: Confinement) -> None:
    """For a box without an image."""
    uid = confinement.uid
    if confinement.bare is not None:
        confinement.bare.take_identity(confinement)
        return
    if confinement.privileged:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        sys_.prctl(sys_.PR_SET_DUMPABLE, 1)  # a change of uid takes it away
    else:
        sys_.prctl(sys_.PR_SET_DUMPABLE, 1)  # or its own /proc files would belong to somebody else, the maps too
        # Below the init's: RLIMIT_NPROC then counts this use alone, and the init can't be traced.
        sys_.unshare(sys_.CLONE_NEWUSER)
        write_identity_map(inside=INNER_UID, outside=0, proc=confinement.proc)
        os.close(confinement.proc)
        sys_.drop_bounding_set()
    sys_.drop_capabilities()


def limit(which: int, value: int) -> None:
    """Sets soft and hard limit, as far down as the present hard limit allows."""
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def write_identity_map(
    *,
    inside: int,
    outside: int,
    inside_gid: int | None = None,
    outside_gid: int | None = None,
    proc: int | None = None,
) -> None:
    """Maps one uid and one gid of the parent user namespace into this process's new one. A gid of None is as the uid;
    `proc`: instead of /proc."""
    gid = outside if outside_gid is None else outside_gid
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {outside} 1"),
        ("gid_map", f"{inside if inside_gid is None else inside_gid} {gid} 1"),
    ):
        path = f"/proc/self/{name}" if proc is None else f"self/{name}"
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
        os.write(handle, text.encode())
        os.close(handle)
