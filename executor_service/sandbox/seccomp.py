"""The system call filter of every program, compiled once when the server starts.

It denies what a program has no use for and what the kernel has had holes in: new namespaces, mounts, tracing,
io_uring, bpf, keys, modules, clocks, and every socket domain but AF_UNIX, AF_INET and AF_INET6 (AF_VSOCK is not bound
to a network namespace, and would reach the host of a virtual machine).

Where there are no namespaces, the filter also stands in for what Landlock does not know: no sockets but pairs of
connected ones, no System V and POSIX queues and memory, no watching of folders, nothing that acts on other processes.
"""

from __future__ import annotations

import errno
import tempfile
from typing import Any

from executor_service.model import IsolationLevel
from fairbox.errors import FairboxError

__all__ = ["compile_filter"]

# fmt: off
_DENIED = (
    "acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module",
    "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "io_uring_enter",
    "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kexec_file_load", "kexec_load", "keyctl",
    "lookup_dcookie", "mbind", "migrate_pages", "modify_ldt", "mount", "mount_setattr", "move_mount", "move_pages",
    "name_to_handle_at", "nfsservctl", "open_by_handle_at", "open_tree", "perf_event_open", "personality",
    "pidfd_getfd", "pivot_root", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl",
    "quotactl_fd", "reboot", "request_key", "set_mempolicy", "setdomainname", "sethostname", "setns", "settimeofday",
    "swapoff", "swapon", "syslog", "sysfs", "umount", "umount2", "unshare", "uselib", "userfaultfd", "ustat",
    "vhangup", "vm86", "vm86old",
)
# fmt: on
_ATTRIBUTES = ("fsetxattr", "lsetxattr", "setxattr", "fremovexattr", "lremovexattr", "removexattr", 463, 466, 469)
"""With setxattrat, removexattrat and file_setattr, whose names not every libseccomp knows. Answered as by a file system
that has none: with that `sed -i` and `cp -a` know how to go on."""
# fmt: off
_DENIED_WITHOUT_NAMESPACES = (
    "accept", "accept4", "bind", "chown", "connect", "fchown", "fchownat", "inotify_add_watch", "inotify_init",
    "inotify_init1", "kcmp", "lchown", "listen", "mq_open", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd",
    "semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmget",
    "socket",
)
# fmt: on
_OF_ONESELF_ALONE = ("sched_setaffinity", "sched_setattr", "sched_setparam")
"""Calls whose first argument is a process; 0 is the caller."""
_PAIR_TYPES = (2, 3, 4)
"""Kinds of socket pairs that could be given another address: SOCK_DGRAM, SOCK_RAW and SOCK_RDM."""
_NAMESPACE_FLAGS = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. CLONE_NEWTIME is for unshare and clone3 alone."""
_SCHED_OTHER = 0
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
_AF_UNIX = 1
_ALLOWED_DOMAINS = (_AF_UNIX, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6."""


def compile_filter(level: IsolationLevel = IsolationLevel.NAMESPACES) -> bytes:
    """An array of struct sock_filter for programs of a level. FairboxError where libseccomp is missing."""
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError) as error:
        raise FairboxError(f"the sandbox needs libseccomp (Debian package libseccomp2): {error}") from None
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    denied = pyseccomp.ERRNO(errno.EPERM)
    for name in _DENIED:
        rules.add_rule(denied, name)
    # ENOSYS makes C libraries fall back to clone, whose flags can be looked at.
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    for flag in _NAMESPACE_FLAGS:
        rules.add_rule(denied, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    # Limits of other processes: where all runs have one uid, the init's own would be within reach.
    rules.add_rule(denied, "prlimit64", pyseccomp.Arg(0, pyseccomp.NE, 0))
    # The same for what would outlive a use in its init: priority, processors, scheduling of others than oneself.
    for name in _OF_ONESELF_ALONE:
        rules.add_rule(denied, name, pyseccomp.Arg(0, pyseccomp.NE, 0))
    # The usual policy is what all processes have: giving it changes nothing, and runtimes give it to their threads.
    rules.add_rule(
        denied,
        "sched_setscheduler",
        pyseccomp.Arg(0, pyseccomp.NE, 0),
        pyseccomp.Arg(1, pyseccomp.NE, _SCHED_OTHER),
    )
    for name in ("setpriority", "ioprio_set"):
        rules.add_rule(denied, name, pyseccomp.Arg(1, pyseccomp.NE, 0))
    for request in (_TIOCSTI, _TIOCLINUX):
        rules.add_rule(denied, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, request))
    allowed: dict[str, tuple[int, ...]] = {"socket": _ALLOWED_DOMAINS, "socketpair": _ALLOWED_DOMAINS}
    if level is IsolationLevel.LANDLOCK:
        _stand_in_for_namespaces(rules, pyseccomp)
        allowed = {"socketpair": (_AF_UNIX,)}
    for name, domains in allowed.items():
        for domain in set(range(max(domains))) - set(domains):
            rules.add_rule(denied, name, pyseccomp.Arg(0, pyseccomp.MASKED_EQ, 0xFFFFFFFF, domain))
        rules.add_rule(denied, name, pyseccomp.Arg(0, pyseccomp.GT, max(domains)))
    # A tree instead of a list: it is installed in every worker, and looked at in every system call.
    rules.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, 2)
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _stand_in_for_namespaces(rules: Any, pyseccomp: Any) -> None:
    denied = pyseccomp.ERRNO(errno.EPERM)
    for name in _DENIED_WITHOUT_NAMESPACES:
        rules.add_rule(denied, name)
    for call in _ATTRIBUTES:
        rules.add_rule(pyseccomp.ERRNO(errno.EOPNOTSUPP), call)
    for kind in _PAIR_TYPES:
        rules.add_rule(denied, "socketpair", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xF, kind))
    # Of a process (which 0, for I/O 1), and of the caller.
    for name, kind in (("setpriority", 0), ("ioprio_set", 1)):
        rules.add_rule(denied, name, pyseccomp.Arg(0, pyseccomp.NE, kind))
        rules.add_rule(denied, name, pyseccomp.Arg(1, pyseccomp.NE, 0))
