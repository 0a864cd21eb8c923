"""The system call filter of every program, compiled once when the server starts.

It lists what is allowed: what C libraries, shells, compilers and the runtimes of the languages call. Whatever is not
listed, a call that a later kernel brings included, is ENOSYS, so that programs fall back on what they did without it.
To add one, write its name where it belongs; `tests/executor/test_seccomp.py` runs the filter over every number.

What programs ask for in vain more often, and the kernel has had holes in, is EPERM: new namespaces, mounts, tracing,
io_uring, bpf, keys, modules, clocks, and every socket domain but AF_UNIX, AF_INET and AF_INET6 (AF_VSOCK is not bound
to a network namespace, and would reach the host of a virtual machine). Nobody is told when another program opens or
holds a file: no inotify, no F_NOTIFY, and no leases of files, which would also make others wait.

Where there are no namespaces, the filter also stands in for what Landlock does not know: no sockets but pairs of
connected ones, no System V and POSIX queues and memory, nothing that acts on other processes, no clocks of theirs.

For versions of Landlock that don't know truncation, no path is truncated (`ftruncate` is of a file that was opened to
be written). For those that don't scope signals, no descriptor sends any (F_SETOWN), and each call that signals somebody
is left to the init of the box (`guest/walls/call_relay.py`); so is each that starts a process or thread, because
there the init kills one by one, and could not catch up with a bomb.
"""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from typing import Any

from executor_service.guest.walls import landlock
from executor_service.model import IsolationLevel
from fairbox.errors import FairboxError

# fmt: off
_ALLOWED_TEXT = """
    access cachestat chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
    fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock
    fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr ioctl lchown
    lgetxattr link linkat listxattr llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat mknod mknodat newfstatat
    open openat openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv
    removexattr rename renameat renameat2 rmdir sendfile setxattr splice stat statfs statx symlink symlinkat sync
    sync_file_range syncfs tee truncate umask unlink unlinkat utime utimensat utimes vmsplice write writev

    brk get_mempolicy madvise map_shadow_stack membarrier memfd_create mincore mlock mlock2 mlockall mmap mprotect
    mremap msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect remap_file_pages

    arch_prctl capget capset clone execve execveat exit exit_group fork get_robust_list get_thread_area getcpu getegid
    geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid
    gettid getuid ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self pause
    pidfd_open pidfd_send_signal prctl prlimit64 restart_syscall rseq sched_get_priority_max sched_get_priority_min
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
    sched_setattr sched_setparam sched_setscheduler sched_yield seccomp set_robust_list set_thread_area set_tid_address
    setfsgid setfsuid setgid setgroups setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setuid
    sysinfo times uname vfork wait4 waitid

    rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
    rt_tgsigqueueinfo sigaltstack signalfd signalfd4 tgkill tkill

    alarm clock_getres clock_gettime clock_nanosleep getitimer getrandom gettimeofday nanosleep setitimer time
    timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
    timerfd_settime

    epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 futex futex_requeue
    futex_wait futex_waitv futex_wake pipe pipe2 poll ppoll pselect6 select

    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg
    sendto setsockopt shutdown socket socketpair

    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget
    semop semtimedop shmat shmctl shmdt shmget
"""
"""By what they are for: files, memory, processes, signals, time, waiting, sockets, IPC. Some are narrowed below."""
_ALLOWED = frozenset(_ALLOWED_TEXT.split())
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
_MOST_CALLS = 1024
"""Numbers that are looked up in libseccomp; no architecture has as many calls."""
_RET_ENOSYS = 0x00050000 | errno.ENOSYS
_ATTRIBUTES = ("fsetxattr", "lsetxattr", "setxattr", "fremovexattr", "lremovexattr", "removexattr")
"""Answered as by a file system that has none: with that `sed -i` and `cp -a` know how to go on."""
# fmt: off
_DENIED_WITHOUT_NAMESPACES = (
    "accept", "accept4", "bind", "chown", "connect", "fchown", "fchownat", "lchown", "listen", "mq_open", "mq_unlink",
    "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmget",
    "socket",
)
# fmt: on
_OF_ONESELF_ALONE = ("sched_setaffinity", "sched_setattr", "sched_setparam")
"""Calls whose first argument is a process; 0 is the caller."""
_CLOCKS = ("clock_getres", "clock_gettime", "clock_nanosleep", "timer_create")
_OF_A_PROCESS, _OF_A_THREAD = 0x80000000, 0x00000004
"""Bits of clocks that count CPU time by a number: the kernel gives those of threads to their own process alone."""
_PAIR_TYPES = (2, 3, 4)
"""Kinds of socket pairs that could be given another address: SOCK_DGRAM, SOCK_RAW and SOCK_RDM."""
_NAMESPACE_FLAGS = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. CLONE_NEWTIME is for unshare and clone3 alone."""
_SCHED_OTHER = 0
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
_TIOCSETD = 0x5423
"""Gives a terminal another line discipline, of which the kernel loads any."""
_TELLING = (1024, 1026)
"""F_SETLEASE and F_NOTIFY of fcntl."""
_O_TRUNC = 0x200
_NOT_TO_WRITE = (0, 3)
"""Modes of opening that need no right to write of Landlock: O_RDONLY, and the one for requests to drivers."""
_OWNING = (8, 10, 15)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX of fcntl."""
_OWNING_REQUESTS = (0x8901, 0x8902)
"""FIOSETOWN and SIOCSPGRP of ioctl."""
_SIGNALS = ("kill", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "tgkill", "tkill")
_SOL_SOCKET = 1
_BUFFER_SIZES = (7, 8)
"""SO_SNDBUF and SO_RCVBUF."""
_AF_UNIX = 1
_ALLOWED_DOMAINS = (_AF_UNIX, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6."""


def compile_filter(level: IsolationLevel = IsolationLevel.NAMESPACES, version: int = landlock.NEWEST) -> bytes:
    """An array of struct sock_filter for programs of a level; `version` is that of Landlock. FairboxError where
    libseccomp is missing."""
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError) as error:
        raise FairboxError(f"the sandbox needs libseccomp (Debian package libseccomp2): {error}") from None
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    highest = _refuse_all_but_listed(rules, pyseccomp)
    denied = pyseccomp.ERRNO(errno.EPERM)
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
    for command in _TELLING:
        rules.add_rule(denied, "fcntl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, command))
    for option in _BUFFER_SIZES:
        # As if it were the size already: the system's maximum is megabytes, and holds for every namespace.
        options = pyseccomp.Arg(2, pyseccomp.MASKED_EQ, 0xFFFFFFFF, option)
        rules.add_rule(
            pyseccomp.ERRNO(0), "setsockopt", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, _SOL_SOCKET), options
        )
    for request in (_TIOCSTI, _TIOCLINUX, _TIOCSETD):
        rules.add_rule(denied, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, request))
    allowed: dict[str, tuple[int, ...]] = {"socket": _ALLOWED_DOMAINS, "socketpair": _ALLOWED_DOMAINS}
    if level is IsolationLevel.LANDLOCK:
        _stand_in_for_namespaces(rules, pyseccomp)
        _stand_in_for_landlock(rules, pyseccomp, version)
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
        return _only_up_to(highest) + file.read()


def _refuse_all_but_listed(rules: Any, pyseccomp: Any) -> int:
    """Refuses each call that is not in the list, of those up to the highest one that is; returns its number. Refusals
    are fewer than what is allowed, and the shorter the filter, the sooner it is installed in each worker."""
    names = {}
    for number in range(_MOST_CALLS):
        try:
            names[number] = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, number).decode()
        except ValueError:
            continue  # no call has this number
    highest = max(number for number, name in names.items() if name in _ALLOWED)
    for name in _DENIED:
        rules.add_rule(pyseccomp.ERRNO(errno.EPERM), name)
    for number, name in names.items():
        if name not in _ALLOWED and name not in _DENIED and name != "clone3" and number < highest:
            rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), number)
    return highest


def _only_up_to(highest: int) -> bytes:
    """Instructions ahead of all others: a call above this number is ENOSYS."""
    instructions = ((0x20, 0, 0, 0), (0x25, 0, 1, highest), (0x06, 0, 0, _RET_ENOSYS))  # load it; if greater; return
    return b"".join(struct.pack("=HBBI", *each) for each in instructions)


def _stand_in_for_namespaces(rules: Any, pyseccomp: Any) -> None:
    denied = pyseccomp.ERRNO(errno.EPERM)
    for name in _DENIED_WITHOUT_NAMESPACES:
        rules.add_rule(denied, name)
    for call in _ATTRIBUTES:
        rules.add_rule(pyseccomp.ERRNO(errno.EOPNOTSUPP), call)
    for name in _CLOCKS:
        clock = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _OF_A_PROCESS | _OF_A_THREAD, _OF_A_PROCESS)
        rules.add_rule(pyseccomp.ERRNO(errno.EINVAL), name, clock)
    for kind in _PAIR_TYPES:
        rules.add_rule(denied, "socketpair", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xF, kind))
    # Of a process (which 0, for I/O 1), and of the caller.
    for name, kind in (("setpriority", 0), ("ioprio_set", 1)):
        rules.add_rule(denied, name, pyseccomp.Arg(0, pyseccomp.NE, kind))
        rules.add_rule(denied, name, pyseccomp.Arg(1, pyseccomp.NE, 0))


def _stand_in_for_landlock(rules: Any, pyseccomp: Any, version: int) -> None:
    if version < landlock.TRUNCATES:
        refused = pyseccomp.ERRNO(errno.EACCES)
        rules.add_rule(refused, "truncate")
        for name, flags in (("open", 1), ("openat", 2)):
            for mode in _NOT_TO_WRITE:
                asked = pyseccomp.Arg(flags, pyseccomp.MASKED_EQ, _O_TRUNC | os.O_ACCMODE, _O_TRUNC | mode)
                rules.add_rule(refused, name, asked)
        rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "openat2")  # its flags lie in memory; C libraries fall back
    if version < landlock.SCOPES:
        denied = pyseccomp.ERRNO(errno.EPERM)
        for name, commands in (("fcntl", _OWNING), ("ioctl", _OWNING_REQUESTS)):
            for command in commands:
                rules.add_rule(denied, name, pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, command))
        # A uid of one's own is no help: another server on this machine may have given it too.
        for name in (*_SIGNALS, "fork", "vfork"):
            rules.add_rule(pyseccomp.NOTIFY, name)
        none = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, sum(_NAMESPACE_FLAGS), 0)
        rules.add_rule(pyseccomp.NOTIFY, "clone", none)
