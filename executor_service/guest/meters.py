"""Reads what the processes of a run use: from control groups where the server made some, else from /proc.

Invariants: every file is opened before the host's file system is left; readings never raise for a process that ends
meanwhile. Resident memory of several processes is the sum of their proportional sizes, in which shared pages count
once. That is slow, so it is taken only when the sum of their resident sizes, which is never less, is above the limit,
or differs from what it was the last time (by an eighth more, or a quarter less), and before they are killed.
"""

from __future__ import annotations

import os
import select
import time

from executor_service.guest.walls.signals import members
from executor_service.guest.walls.syscalls import open_as
from executor_service.guest.walls.tree import count_tasks, resident_bytes, stat_fields, waited_s
from executor_service.guest.watch import Reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from executor_service.guest.protocol.spec import Groups

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Positions in what `stat_fields` returns.
_CUTIME, _CSTIME = 13, 14
_THREADS = 17
_RSS = 21
SPARE_PROCESSES = 8
"""A control group or the init counts processes: the resource limit must not be met first, because nobody is told."""
_CPU_CLOCK = 2
"""CPUCLOCK_SCHED of a process, in the low bits of a clock id."""
_RUN = "run"
"""Group of one use, in that of its box."""
_MANY_DYING, _MOST_DYING = 16, 64
"""Groups of ended uses that the kernel keeps, with some KiB for each processor, because a file is cached that their
program was the first to read: from the first number on what is cached is given up, from the second on the box."""
_LEAST_MEMORY = 8 << 20
"""Bytes that a worker that waits needs; a limit below can't be set while it lives."""
_MOST_LEFT = (8 << 20) + (os.cpu_count() or 1) * 64 * _PAGE
"""Bytes that may stay charged to a group whose processes are dead: cached files and names that a usual program has
looked at, and what the kernel charges ahead on each processor."""


def limit_values(memory_bytes: int, processes: int) -> dict[str, int]:
    """Values of the limits of control groups, by name."""
    return {"memory": max(memory_bytes, _LEAST_MEMORY), "processes": processes}


class Meters:
    """Opened once for a box; `begin()` and `end()` enclose one use, `baseline()` is the start of its program."""

    def __init__(self, groups: Groups) -> None:
        self.attach = [_open(path, os.O_WRONLY) for path in groups["attach"]]
        """Files by which a worker joins its groups."""
        self._each_use = _open(groups["each_use"], os.O_PATH | os.O_DIRECTORY)
        self._dying = _open(groups["dying"])
        self._reclaim = _open(groups["reclaim"], os.O_WRONLY)
        self._oom = _open(groups["oom"])
        self._processes = _open(groups["processes"])
        self._cpu = _open(groups["cpu"])
        self._peak = _open(groups["peak"], os.O_RDWR)
        self._limits = {name: _open(path, os.O_WRONLY) for name, path in groups["limits"].items()}
        self._charged = _open(groups["charged"])
        self._used = _open(groups["used"])
        self._left = self._still_charged()
        """Bytes that were charged when the use began."""
        self.pids: Callable[[], list[int]] = _pids
        """Who is in the box."""
        self.last_pid: int | None = None
        """Descriptor of the namespace's ns_last_pid: the number of its newest process or thread."""
        self.most_tasks = 0
        """Processes and threads that a use may have; 0: somebody else counts them."""
        self._tasks = 0
        """Processes and threads at the last look."""
        self._summed = 0
        """Resident sizes together from which on, or from two thirds of which down, they are looked at again."""
        self._cpu_before = self._seen_before = 0.0
        self._seen: dict[int, float] = {}
        """CPU seconds of each process at the last look."""
        self._gone_s = 0.0
        """The same of those that have ended since, as far as was seen."""
        self._oom_before = self._denied_before = b""
        """Contents of the files when the use began."""
        self._waited_before = 0.0

    @property
    def guards_memory(self) -> bool:
        """True if a control group, not the caller, keeps the memory limit."""
        return self._oom >= 0

    @property
    def looks(self) -> bool:
        """True if the caller's looks, not a control group, keep the limit of memory or of processes."""
        return self._oom < 0 or bool(self.most_tasks)

    @property
    def knows_peak(self) -> bool:
        """True if a control group reports the peak of memory."""
        return self._peak >= 0

    def begin(self) -> None:
        """Counts from here: before the fork of the worker, which says what it has used since it is there."""
        self.most_tasks = self._summed = 0
        self._oom_before, self._denied_before = _text(self._oom), _text(self._processes)
        self._waited_before = waited_s() if self._cpu < 0 else 0.0
        self._cpu_before = self._seen_before = self._gone_s = 0.0
        self._seen.clear()
        self._cpu_before = self._cpu_s() if self._cpu >= 0 else 0.0
        if self._each_use >= 0:
            os.mkdir(_RUN, dir_fd=self._each_use)
            self.attach[:] = [_open(f"{_RUN}/cgroup.procs", os.O_WRONLY, self._each_use)]
            self._peak = _open(f"{_RUN}/memory.peak", folder=self._each_use)
        elif self._peak >= 0:
            os.pwrite(self._peak, b"0", 0)

    def end(self) -> None:
        """Everything of the use is dead, and its peak is known."""
        if self._each_use >= 0:
            for handle in (*self.attach, self._peak):
                os.close(handle)
            os.rmdir(_RUN, dir_fd=self._each_use)

    def restrict(self, memory_bytes: int, processes: int) -> None:
        """Other limits for the control groups. No program may run in them; a worker that waits may."""
        for name, value in limit_values(memory_bytes, processes).items():
            if name in self._limits:
                os.pwrite(self._limits[name], b"%d" % value, 0)

    def spoiled(self) -> bool:
        """Says whether the dead have left so much memory behind that nobody else can use this group: taking it back
        would cost the next use, or whoever sets its limit."""
        self._left = self._still_charged()
        dying = _value(_text(self._dying), b"nr_dying_descendants")
        if dying > _MANY_DYING and self._reclaim >= 0:
            try:
                os.pwrite(self._reclaim, b"%d" % max(self._left, _PAGE), 0)
            except OSError:
                pass  # it could not take back all
        return self._left > _MOST_LEFT or dying > _MOST_DYING

    def _still_charged(self) -> int:
        return int(_text(self._charged) or 0)

    def wake(self, poll: select.poll) -> None:
        """When a fork is denied."""
        if self._processes >= 0:
            poll.register(self._processes, select.POLLPRI)

    def baseline(self, used_s: float | None) -> None:
        """CPU time used so far is not the program's: `used_s` since `begin()`; None: all that can be seen now."""
        if self._cpu < 0 and used_s is None:
            self._cpu_before, self._seen_before = self._counted_s()
        else:
            used_s = self._cpu_s() if used_s is None else used_s
            self._cpu_before += used_s
            self._seen_before += used_s

    def read(self, memory_bytes: int = 0, *, last: bool = False) -> Reading:
        """`memory_bytes` is the limit, 0: there is none. `last`: nobody will look again before all are killed.

        Who has too many processes is to be ended before they take the processors from the init: nothing else is read.
        """
        shared = self.pids is not _pids  # /proc shows the whole machine, and to look through it takes long
        if shared and self.most_tasks and count_tasks(os.getpid(), self.most_tasks) > self.most_tasks:
            return Reading(0.0, denied_forks=1)
        pids = self.pids() if self._oom < 0 or self._cpu < 0 or (self.most_tasks and not shared) else []
        if 0 < self.most_tasks < len(pids):
            return Reading(0.0, denied_forks=1)
        stats = {pid: stat_fields(pid) for pid in pids}
        self._tasks = sum(_number(fields, _THREADS) for fields in stats.values())
        if 0 < self.most_tasks < self._tasks:
            return Reading(0.0, denied_forks=1)
        resident = self._resident(stats, memory_bytes, last=last)
        denied = _more(self._processes, b"max", self._denied_before)
        cpu_s = max(0.0, self._cpu_s(stats))
        kills, outside = self._kills()
        return Reading(cpu_s, resident, kills, denied, outside_kills=outside)

    def _kills(self) -> tuple[int, int]:
        """Processes that the kernel killed for this group's own limit, and for want of memory outside of it."""
        kills = _more(self._oom, b"oom_kill", self._oom_before)
        if not kills or _more(self._oom, b"oom", self._oom_before):
            return kills, 0
        return 0, kills

    def read_last(self, worker: int, memory_bytes: int) -> Reading:
        """As `read(memory_bytes, last=True)`, of a use whose worker has stopped for good or is dead. Most have started
        nobody: then the worker is all that there is to look at."""
        if self._oom < 0 and self.alone(worker):
            resident = resident_bytes(worker)
            if resident > 0 and not 0 < memory_bytes < resident:
                self._tasks = 1
                return Reading(max(0.0, _clock_s(worker) - self._cpu_before), resident)
        return self.read(memory_bytes, last=True)

    def alone(self, worker: int) -> bool:
        """Says whether the worker is known to have started nobody: no other process or thread came after it."""
        return self.last_pid is not None and int(os.pread(self.last_pid, 32, 0)) == worker

    def exceeds(self, worker: int) -> bool:
        """Says whether there were too many at the last look, before the server has said how many may be: the resource
        limit of the worker decides, which those that it has left behind have as well."""
        if self._processes >= 0 or self._tasks <= 1:
            return False
        found = (most for pid in (worker, *self.pids()) if (most := _most_processes(pid)) is not None)
        most = next(found, None)
        return most is not None and self._tasks > most - SPARE_PROCESSES

    def _resident(self, stats: dict[int, list[bytes]], memory_bytes: int, *, last: bool) -> int:
        """Bytes of all processes; 0 where a group knows their peak, and where it is not worth a slow look."""
        if self._oom >= 0:
            return 0 if self._peak >= 0 else max(self._still_charged() - self._left, 0)
        resident = sum(map(_resident_bytes, stats.values()))
        beyond = 0 < memory_bytes < resident
        if len(stats) < 2 and not beyond:
            return resident
        if not beyond and not last and self._summed * 2 // 3 < resident < self._summed:
            return 0
        self._summed = resident + resident // 8
        return sum(map(_proportional_bytes, stats))

    def held_bytes(self, resident: int) -> int:
        """Bytes that nothing but the end of the processes frees, with files in memory where a group tells. Without one
        they are those of `resident` beyond this process's, which has as much of the zygote as an interpreter that has
        run nothing."""
        if self._oom < 0:
            return max(0, resident - resident_bytes())
        charged = self._still_charged()
        if charged - self._left < _LEAST_MEMORY:  # the usual case, and cheaper to ask for
            return 0
        said = _text(self._used)
        return _value(said, b"anon") + _value(said, b"shmem")

    def starved_s(self) -> float:
        """The longest that a process was ready and had no processor; 0 where the kernel does not count it."""
        return max(map(_starved_s, self.pids()), default=0.0)

    def starvation(self) -> dict[int, float]:
        """The same for each process of the box."""
        return {pid: _starved_s(pid) for pid in self.pids()}

    def starved_since(self, root: int, before: dict[int, float]) -> float:
        """The longest that process `root`, or one of its tree, has waited since it was as `before` says."""
        now = self.starvation()
        own = members(root, "tree") & now.keys()
        return max((0.0, *(now[pid] - before.get(pid, 0.0) for pid in own)))

    def peak_bytes(self, sampled: int) -> int:
        """The most memory at once: exact from a control group, else the largest sample."""
        if self._peak < 0:
            return sampled
        left = self._left if self._each_use < 0 else 0
        return max(int(os.pread(self._peak, 64, 0)) - left, 0)

    def _cpu_s(self, stats: dict[int, list[bytes]] | None = None) -> float:
        """CPU seconds since the baseline: of a control group, or as counted here."""
        if self._cpu >= 0:
            return _value(_text(self._cpu), b"usage_usec") / 1e6 - self._cpu_before
        told_s, seen_s = self._counted_s(stats)
        return max(told_s - self._cpu_before, seen_s - self._seen_before)

    def _counted_s(self, stats: dict[int, list[bytes]] | None = None) -> tuple[float, float]:
        """Two counts of CPU seconds since `begin()`, neither of which can be too high: of the processes that live or
        were waited for; and of all that were ever seen, as of the last look at each."""
        stats = {pid: stat_fields(pid) for pid in self.pids()} if stats is None else stats
        own = {pid: _clock_s(pid) for pid in stats}
        self._gone_s += sum(seconds for pid, seconds in self._seen.items() if own.get(pid, 0.0) < seconds)
        self._seen = own
        lived_s = sum(own.values())
        children_s = sum(map(_children_cpu_s, stats.values()))
        return waited_s() - self._waited_before + lived_s + children_s, self._gone_s + lived_s


def _pids() -> list[int]:
    """Every process of the box but its init."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _most_processes(pid: int) -> int | None:
    """Its resource limit; None: it is gone, or has none. Asking by prlimit() needs a capability over who may have
    another user."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            said = next(line.split()[2] for line in file if line.startswith(b"Max processes"))
    except OSError:
        return None
    return int(said) if said.isdigit() else None


def _children_cpu_s(fields: list[bytes]) -> float:
    """CPU time of the children that a process has waited for, to the tick."""
    return sum(int(field) for field in fields[_CUTIME : _CSTIME + 1]) / _TICKS_PER_S


def _clock_s(pid: int) -> float:
    """CPU time of a process alone, to the nanosecond; 0: it is gone."""
    try:
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    except OSError:
        return 0.0


def _starved_s(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _number(fields: list[bytes], position: int) -> int:
    """0 of a process that has ended."""
    return int(fields[position]) if fields else 0


def _resident_bytes(fields: list[bytes]) -> int:
    return _number(fields, _RSS) * _PAGE


def _proportional_bytes(pid: int) -> int:
    """Shared pages divided among those that share them: the zygote's cost nobody anything."""
    try:
        with open(_open_as_owner(pid, "smaps_rollup"), "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return resident_bytes(pid)


def _open_as_owner(pid: int, name: str) -> int:
    """Opens a file below /proc/PID. Root without CAP_SYS_PTRACE, as in containers, does it as the process's user."""
    path = f"/proc/{pid}/{name}"
    try:
        return _open(path)
    except PermissionError:
        owner = os.stat(f"/proc/{pid}")
        return open_as(path, owner.st_uid, owner.st_gid)


def _open(path: str, flags: int = os.O_RDONLY, folder: int | None = None) -> int:
    return os.open(path, flags | os.O_CLOEXEC, dir_fd=folder) if path else -1


def _text(handle: int) -> bytes:
    return os.pread(handle, 4096, 0) if handle >= 0 else b""


def _more(handle: int, name: bytes, before: bytes) -> int:
    """By how much the line `name value` has grown since the file said `before`; nearly always it says the same."""
    now = _text(handle)
    return 0 if now == before else _value(now, name) - _value(before, name)


def _value(text: bytes, name: bytes) -> int:
    """Value of the line `name value`; 0 when there is no such line."""
    for line in text.splitlines():
        key, _, value = line.partition(b" ")
        if key == name:
            return int(value)
    return 0
