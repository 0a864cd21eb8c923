"""The compiled filter, run over every number of a system call: what is listed is allowed, and nothing else."""

from __future__ import annotations

import errno
import os
import platform
import struct
import subprocess
import sys

import pyseccomp
import pytest

from executor_service import ExecutorClient, IsolationLevel, Outcome
from executor_service.guest.walls import landlock
from executor_service.sandbox import seccomp
from executor_service.sandbox.seccomp import compile_filter
from tests.executor.servers import ROOT

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64")
ALLOW, NOTIFY, ERRNO, KILL = 0x7FFF0000, 0x7FC00000, 0x00050000, 0x00000000
X86_64 = 0xC000003E
DATA = struct.Struct("=iIQ6Q")
OPERATIONS = {0x15: int.__eq__, 0x25: int.__gt__, 0x35: int.__ge__}


def run(program: bytes, number: int, *arguments: int, arch: int = X86_64) -> int:
    """Returns the result of the kernel's filter interpreter for a call."""
    code = list(struct.iter_unpack("=HBBI", program))
    data = DATA.pack(number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    at = accumulator = 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x05:
            at += value
        elif operation == 0x06:
            return int(value)
        elif operation == 0x45:
            at += if_true if accumulator & value else if_false
        else:
            at += if_true if OPERATIONS[operation](accumulator, value) else if_false


def number_of(name: str) -> int:
    return int(pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name))


def name_of(number: int) -> str:
    try:
        return str(pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, number).decode())
    except ValueError:
        return ""


@pytest.fixture(scope="module", params=IsolationLevel)
def level(request: pytest.FixtureRequest) -> IsolationLevel:
    return IsolationLevel(request.param)


def test_what_is_listed_is_allowed_and_nothing_else(level: IsolationLevel) -> None:
    program = compile_filter(level)
    answers = {number: run(program, number, 1) for number in range(4096) if name_of(number) or number > 512}
    for number, answer in answers.items():
        name = name_of(number)
        if name in seccomp._DENIED:
            assert answer == ERRNO | errno.EPERM, name
        elif name not in seccomp._ALLOWED:
            assert answer == ERRNO | errno.ENOSYS, name or number
        elif level is IsolationLevel.NAMESPACES and name not in ("prlimit64", *seccomp._OF_ONESELF_ALONE):
            assert answer == ALLOW, name
    assert sum(answer == ALLOW for answer in answers.values()) > 240
    assert {name for name in seccomp._ALLOWED if number_of(name) < 0} == set(), "a name that is none"


def test_calls_of_other_architectures_are_not_taken_for_ours(level: IsolationLevel) -> None:
    program = compile_filter(level)
    assert run(program, number_of("getpid"), arch=0x40000003) == KILL
    assert run(program, 0x40000000 | number_of("getpid")) == ERRNO | errno.ENOSYS  # x32


def test_calls_are_narrowed_by_their_arguments(level: IsolationLevel) -> None:
    program = compile_filter(level)
    refused = ERRNO | errno.EPERM
    for flag in (0x02000000, 0x10000000, 0x20000000, 0x40000000):  # a new group, user, pid and net namespace
        assert run(program, number_of("clone"), flag | 0x11) == refused
    assert run(program, number_of("clone"), 0x11) == ALLOW
    assert run(program, number_of("prlimit64"), 1) == refused
    for domain, name in ((16, "AF_NETLINK"), (40, "AF_VSOCK"), (38, "AF_ALG"), (17, "AF_PACKET")):
        assert run(program, number_of("socket"), domain) == refused, name
    for command in (1024, 1026):  # F_SETLEASE, F_NOTIFY
        assert run(program, number_of("fcntl"), 3, command) == refused
        assert run(program, number_of("fcntl"), 3, command | 1 << 32) == refused, "the kernel looks at 32 bits"
    assert run(program, number_of("fcntl"), 3, 1) == ALLOW
    for request in (0x5412, 0x541C, 0x5423):  # TIOCSTI, TIOCLINUX, TIOCSETD
        assert run(program, number_of("ioctl"), 0, request | 1 << 32) == refused
    assert run(program, number_of("ioctl"), 0, 0x5401) == ALLOW, "the settings of a terminal"
    assert run(program, number_of("setsockopt"), 3, 1, 8) == ERRNO, "a receive buffer's size"
    assert run(program, number_of("setsockopt"), 3, 6, 8) == ALLOW


def test_clocks_of_other_processes_are_told_apart(level: IsolationLevel) -> None:
    answer = ERRNO | errno.EINVAL if level is IsolationLevel.LANDLOCK else ALLOW
    for clock, wanted in ((~77 << 3 | 2, answer), (~77 << 3 | 6, ALLOW), (1, ALLOW)):
        for name in ("clock_gettime", "clock_getres", "clock_nanosleep", "timer_create"):
            assert run(compile_filter(level), number_of(name), clock & 0xFFFFFFFFFFFFFFFF) == wanted


@pytest.mark.parametrize("version", range(1, landlock.NEWEST + 1))
def test_the_filter_stands_in_for_what_a_version_of_landlock_lacks(version: int) -> None:
    program = compile_filter(IsolationLevel.LANDLOCK, version)
    refused = ERRNO | errno.EACCES if version < 3 else ALLOW
    assert run(program, number_of("truncate")) == refused
    for mode, answer in ((os.O_RDONLY, refused), (3, refused), (os.O_WRONLY, ALLOW), (os.O_RDWR, ALLOW)):
        assert run(program, number_of("open"), 1, mode | os.O_TRUNC | os.O_CREAT) == answer
        assert run(program, number_of("openat"), 1, 1, mode | os.O_TRUNC) == answer
        assert run(program, number_of("openat"), 1, 1, mode) == ALLOW
    assert run(program, number_of("openat2")) == (ERRNO | errno.ENOSYS if version < 3 else ALLOW)
    assert run(program, number_of("ftruncate")) == ALLOW
    for name in ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"):
        assert run(program, number_of(name)) == (NOTIFY if version < 6 else ALLOW)
    for name in ("fork", "vfork"):
        if (number := number_of(name)) >= 0:  # arm64 has neither
            assert run(program, number) == (NOTIFY if version < 6 else ALLOW)
    for flags in (17, 0x3D0F00):  # what fork and pthread_create of C libraries ask for
        assert run(program, number_of("clone"), flags) == (NOTIFY if version < 6 else ALLOW)
    for flag in (0x00020000, 0x02000000, 0x10000000, 0x20000000, 0x40000000):
        assert run(program, number_of("clone"), 17 | flag) == ERRNO | errno.EPERM
    owning = ERRNO | errno.EPERM if version < 6 else ALLOW
    for command in (8, 10, 15):  # F_SETOWN, F_SETSIG, F_SETOWN_EX
        assert run(program, number_of("fcntl"), 3, command) == owning
    for request in (0x8901, 0x8902):  # FIOSETOWN, SIOCSPGRP
        assert run(program, number_of("ioctl"), 3, request) == owning
    assert run(compile_filter(), number_of("kill")) == ALLOW


TWICE = """
import os
from executor_service.model import IsolationLevel
from executor_service.guest.walls import syscalls
from executor_service.sandbox.seccomp import compile_filter
syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
supervised = syscalls.Filter(compile_filter(IsolationLevel.LANDLOCK, 5))
supervised.install_supervised()
try: supervised.install_supervised()
except OSError as error: print(error.errno)
"""


def test_the_kernel_allows_one_supervisor() -> None:
    """EBUSY is the errno by which `findings` recognizes a filter that already has a supervisor."""
    done = subprocess.run([sys.executable, "-c", TWICE], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{errno.EBUSY}\n", done.stderr


OPENED_BY_OTHERS = """
import ctypes, fcntl, os, sys
libc = ctypes.CDLL(None, use_errno=True)
print("inotify", libc.inotify_init1(0), os.strerror(ctypes.get_errno()))
handle = os.open(os.path.dirname(os.__file__), os.O_RDONLY)
for command in (fcntl.F_NOTIFY, fcntl.F_SETLEASE):
    try:
        fcntl.fcntl(handle, command, 1)
        print(command, "taken")
    except PermissionError:
        print(command, "refused")
"""


async def test_a_program_is_not_told_what_others_open(executor: ExecutorClient) -> None:
    result = await executor.execute(OPENED_BY_OTHERS)
    assert result.stdout.text == "inotify -1 Function not implemented\n1026 refused\n1024 refused\n", result


async def test_who_follows_a_file_looks_again_and_again_instead(executor: ExecutorClient) -> None:
    code = """
echo first > log
coproc tail -f log
read -r one <&${COPROC[0]}
echo more >> log
read -r two <&${COPROC[0]}
echo $one $two
"""
    result = await executor.execute(code, language="bash")
    assert (result.outcome, result.stdout.text) == (Outcome.FINISHED, "first more\n"), result
