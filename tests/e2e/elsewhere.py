"""A client on a system that is not Linux: `python -m tests.e2e.elsewhere SYSTEM EXECUTOR LIMITER ADMIN`.

The interpreter loses what SYSTEM (`win32` or `darwin`) does not have, and then the clients are imported and used. The
standard library, which is made for the system that it is on, is loaded before.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import ctypes
import getpass
import importlib.abc
import multiprocessing.connection
import os
import select
import signal
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
import zoneinfo
from collections.abc import Sequence
from typing import Never

LOADED = [asyncio, concurrent.futures.thread, ctypes, getpass, multiprocessing.connection, ssl, subprocess]
LOADED += [tempfile, urllib.request, zoneinfo]

LINUX_MODULES = ("pyseccomp",)
UNIX_MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
LINUX_OS = """copy_file_range eventfd memfd_create pidfd_open posix_fadvise sched_getaffinity sched_setaffinity setns
splice unshare setresuid setresgid getresuid O_PATH O_TMPFILE O_DIRECT prlimit"""
UNIX_OS = """chown fchmod fchown fork forkpty geteuid getegid getgid getgroups getloadavg getpgid getpgrp getpriority
getsid getuid initgroups killpg lchown mkfifo mknod nice openpty posix_spawn pread pwrite register_at_fork sendfile
setpgid setpriority setsid setuid setgid statvfs sysconf uname wait wait3 wait4 waitid WIFEXITED WNOHANG WTERMSIG
O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC"""
UNIX_SIGNALS = """SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGXCPU alarm
pthread_sigmask setitimer siginterrupt sigwait"""


class Missing(importlib.abc.MetaPathFinder):
    """Finds none of `names`, as if nobody had installed them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname in self._names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def _not_there(*_: object) -> Never:
    """Raises, as Windows event loops do when asked to watch signals and descriptors."""
    raise NotImplementedError


def leave_linux(system: str) -> None:
    """Takes away what `system` lacks."""
    sysconfig.get_config_vars()
    windows = system == "win32"
    modules = LINUX_MODULES + (UNIX_MODULES if windows else ())
    for name in modules:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing(modules))
    gone = [(os, LINUX_OS), (select, "epoll"), (signal, "pidfd_send_signal")]
    if windows:
        gone += [(os, UNIX_OS), (select, "poll"), (signal, UNIX_SIGNALS)]
        for name in ("add_signal_handler", "remove_signal_handler", "add_reader", "remove_reader"):
            setattr(asyncio.SelectorEventLoop, name, _not_there)
    for module, names in gone:
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.platform = system


async def use(executor: str, limiter: str) -> None:
    """A program, a cell, a lease and a model's call."""
    from executor_service import ExecutorClient
    from limiter import LimiterClient
    from rollout.tools import ToolOutcome
    from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
    from rollout.tools.code.bash import BashConfig, BashTool

    async with ExecutorClient(executor) as client, LimiterClient(limiter) as admission:
        async with admission.lease("code") as lease:
            result = await client.execute("print(6 * 7)", lease=lease)
        assert result.stdout.text == "42\n", result
        async with client.session() as session:
            await session.run("x = 20")
            assert (await session.run("x + 1")).displays[-1].text == "21"
    async with CodeInterpreter(CodeInterpreterConfig(), executor=executor, limiter=limiter) as tool:
        answer = await tool.execute("one", {"code": "print(5)"})
        assert answer.outcome is ToolOutcome.OK, answer
    async with BashTool(BashConfig(), executor=executor, limiter=limiter) as shell:
        answer = await shell.execute("one", {"command": "echo $((1 + 1))"})
        assert answer.text.strip() == "2", answer


def main() -> None:
    """Prints what the command line prints, and last of all `done`."""
    system, executor, limiter, admin = sys.argv[1:]
    leave_linux(system)
    from rollout.cli import main as command

    asyncio.run(use(executor, limiter))
    assert command(["exec", "-c", "print('from', 'exec')", "--executor", executor]) == 0
    assert command(["status", f"executor={executor}", f"limiter={admin}", "json=true"]) == 0
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
