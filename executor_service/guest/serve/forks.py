"""Forks of this process, one after the other, of which none finds anything that another has left.

Invariants: when `over()` returns, everything that the last fork has started is dead, its files are as they were before,
and it is known whether it has left nothing else; whoever asks takes another box where it has. What is looked at:
numbers of processes, names and attributes in the private folders, System V objects, packets, the standard streams;
without namespaces, where programs have no objects and no network, names and facts of the folders, and the streams. In a
namespace a fork can tell by its process number how many there were. Code that has run in this process before the first
fork can change all of this; what it then lets pass from one of its forks to the next is its own.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import stat
import sys
import time

from executor_service.guest.serve import branch
from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls.private import private_folders
from executor_service.guest.walls.traces import LONG_S, ObjectNumbers, PacketCounts, next_inode
from executor_service.guest.walls.tree import adopt, waited_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STREAMS = (0, 1, 2)
_MOST_BYTES = 1 << 20
"""Bytes of the files of the work folder together: each fork finds them written anew."""
_SPARE_CPU_S = 2
"""As for every program: one process may pass the limit for all by so much, if the init does not notice."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Forks:
    """To be made before the code is loaded that is to be forked. `bare`: there are no namespaces."""

    def __init__(self, *, bare: bool) -> None:
        adopt()
        self._numbered = not bare
        self._work = os.open(".", _FOLDER)
        self._files = _contents(self._work)
        self._traces = _FolderTraces() if bare else _Traces(self._work)
        self._traces.begin(made=0)
        self._facts = _facts()
        self._child = 0
        self._began = self._used_s = 0.0

    def possible(self) -> bool:
        """Says, once the code is loaded, whether it can be forked without losing something or sharing it."""
        if self._files is None or not self._traces.none() or self._files != _contents(self._work):
            return False
        return self._facts == _facts() and not branch.obstacle()

    def fork(self, cpu_s: int) -> bool | None:
        """True in the child, which may use `cpu_s` seconds; False in the parent; None in a child that must not go on:
        the one before it has made processes or threads."""
        self._write()
        self._began, self._used_s = time.monotonic(), waited_s()
        drawn = sys.modules["random"].getstate() if "random" in sys.modules else None
        before = self._child
        self._child = os.fork()
        if self._child:
            return False
        if self._numbered and before and os.getpid() != before + 1:
            return None
        if drawn is not None:
            sys.modules["random"].setstate(drawn)  # a fork has seeded it anew
        os.setsid()
        most = cpu_s + _SPARE_CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))
        return True

    def over(self) -> dict[str, Any]:
        """Waits for the child, ends what it has left, and returns what it has used and whether it has left nothing."""
        pid, peak, status = 0, 0, 0
        while pid != self._child:
            pid, status, used = os.wait4(-1, 0)
            peak = max(peak, used.ru_maxrss)
        wall_s = time.monotonic() - self._began
        try:
            os.kill(-1, signal.SIGKILL)
            while True:
                peak = max(peak, os.wait4(-1, 0)[2].ru_maxrss)
        except (ProcessLookupError, ChildProcessError):
            pass
        code = os.waitstatus_to_exitcode(status)
        known = wall_s < LONG_S or not self._numbered
        return {
            "code": max(code, 0),
            "signal": max(-code, 0),
            "wall_s": wall_s,
            "cpu_s": waited_s() - self._used_s,
            "peak_bytes": peak << 10,
            "clean": code >= 0 and known and self._traces.none(),
        }

    def _write(self) -> None:
        """Makes the files anew: what an earlier fork has written into them is gone."""
        assert self._files is not None
        for name, (content, mode) in self._files.items():
            os.unlink(name, dir_fd=self._work)
            handle = os.open(name, _NEW, 0o600, dir_fd=self._work)
            while content:
                content = content[os.write(handle, content) :]
            os.fchmod(handle, mode)
            os.close(handle)
        self._traces.begin(made=len(self._files))


class _Traces:
    """`none()` says whether there are any since `begin()`."""

    def __init__(self, work: int) -> None:
        self._work = work
        self._folders = sys_.FolderFacts(*private_folders(os.getcwd()))
        self._objects = ObjectNumbers()
        self._packets = PacketCounts("self")
        self._inode = next_inode(".", work)
        self._before: tuple[object, ...] = ()

    def begin(self, *, made: int) -> None:
        """`made`: the number of files that this process itself has made since the last look."""
        self._inode += made
        self._before = self._look()

    def none(self) -> bool:
        try:
            expected, self._inode = self._inode + 1, next_inode(".", self._work)
            return self._inode == expected and self._look() == self._before and not self._objects.used()
        except OSError:
            return False

    def _look(self) -> tuple[object, ...]:
        changed_ns = os.fstat(self._work).st_ctime_ns
        return changed_ns, self._folders.look(self._work), self._packets.look(), _flags()


class _FolderTraces:
    """The same without namespaces: what the folders hold that a program can write to."""

    def __init__(self) -> None:
        self._folders = [os.open(path, _FOLDER) for path in (".", os.environ["TMPDIR"])]
        self._before: tuple[object, ...] = ()

    def begin(self, *, made: int) -> None:
        self._before = self._look()

    def none(self) -> bool:
        try:
            return self._look() == self._before
        except OSError:
            return False

    def _look(self) -> tuple[object, ...]:
        looks: list[object] = [_flags()]
        for folder in self._folders:
            facts = os.fstat(folder)
            looks.append((facts.st_mode, facts.st_uid, facts.st_nlink, facts.st_mtime_ns, facts.st_ctime_ns))
            looks.append(sorted(os.listdir(folder)))
        return tuple(looks)


def _flags() -> list[int]:
    """Settings of the standard streams, which all forks share."""
    return [fcntl.fcntl(number, fcntl.F_GETFL) for number in _STREAMS]


def _contents(work: int) -> dict[str, tuple[bytes, int]] | None:
    """The files of the work folder, with their modes; None: there are folders, or too much."""
    files, left = {}, _MOST_BYTES
    for name in os.listdir(work):
        facts = os.stat(name, dir_fd=work, follow_symlinks=False)
        left -= facts.st_size
        if not stat.S_ISREG(facts.st_mode) or left < 0:
            return None
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=work)
        with open(handle, "rb") as file:
            files[name] = (file.read(), stat.S_IMODE(facts.st_mode))
    return files


def _facts() -> tuple[int, int]:
    """Open files, and memory that is shared with children: the number of each."""
    try:
        with open("/proc/self/maps", "rb") as file:
            return len(os.listdir("/proc/self/fd")), sum(line.split(b" ", 2)[1].endswith(b"s") for line in file)
    except OSError:  # a level without /proc
        return sum(map(_is_open, range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))), _count_mappings()


def _is_open(number: int) -> bool:
    try:
        fcntl.fcntl(number, fcntl.F_GETFD)
    except OSError:
        return False
    return True


_mapped: list[int] = []
"""Its items: how many mappings Python code has made since `_count_mappings()` was called first."""


def _count_mappings() -> int:
    def hear(event: str, _: object) -> None:
        if event == "mmap.__new__":
            _mapped[0] += 1

    if not _mapped:
        _mapped.append(0)
        sys.addaudithook(hear)
    return _mapped[0]
