"""Reads what the processes of a run use: from control groups where the server made some, else from /proc.

Invariants: every file is opened before the host's file system is left; readings never raise for a process that ends
meanwhile. Resident memory is the sum over processes, so shared pages count once for each.
"""

from __future__ import annotations

import os
import resource
import select

from executor_service.sandbox.inside.watch import Reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from executor_service.sandbox.inside.spec import Groups

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Positions in /proc/PID/stat, counted from the state, which follows the name in parentheses.
_UTIME, _CSTIME = 11, 14
_RSS = 21


class Meters:
    def __init__(self, groups: Groups) -> None:
        self.attach = [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in groups["attach"]]
        self._oom = _open(groups["oom"])
        self._processes = _open(groups["processes"])
        self._cpu = _open(groups["cpu"])
        self._peak = _open(groups["peak"])

    @property
    def guards_memory(self) -> bool:
        """Whether a control group, and not the caller, keeps the memory limit."""
        return self._oom >= 0

    def register(self, poll: select.poll) -> None:
        """Wakes `poll` when a fork is denied."""
        if self._processes >= 0:
            os.pread(self._processes, 256, 0)
            poll.register(self._processes, select.POLLPRI)

    def read(self) -> Reading:
        cpu_s, resident = self._scan() if self._cpu < 0 or self._oom < 0 else (0.0, 0)
        if self._cpu >= 0:
            cpu_s = int(os.pread(self._cpu, 64, 0)) / 1e9
        return Reading(cpu_s, resident, _value(self._oom, b"oom_kill"), _value(self._processes, b"max"))

    def peak_bytes(self, sampled: int) -> int:
        """The most memory at once: exact from a control group, else the larger of samples and the largest process."""
        if self._peak >= 0:
            return int(os.pread(self._peak, 64, 0))
        return max(sampled, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)

    def _scan(self) -> tuple[float, int]:
        """CPU seconds of all processes that live or were waited for, and resident bytes of those that live."""
        waited = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s, pages = waited.ru_utime + waited.ru_stime, 0
        for name in os.listdir("/proc"):
            if name == "1" or not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            cpu_s += sum(int(field) for field in fields[_UTIME : _CSTIME + 1]) / _TICKS_PER_S
            pages += int(fields[_RSS])
        return cpu_s, pages * _PAGE


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else -1


def _value(handle: int, name: bytes) -> int:
    """Value of the line `name value`; 0 when there is no such file or line."""
    if handle >= 0:
        for line in os.pread(handle, 4096, 0).splitlines():
            key, _, value = line.partition(b" ")
            if key == name:
                return int(value)
    return 0
