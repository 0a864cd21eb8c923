"""Decides when a running program has used up a limit. Pure: readings and times in, a reason or a deadline out.

Invariants: only time since the program's start counts, and not what it waited for a processor, up to a bound; CPU time
never goes backwards; the next look at the CPU is never later than the moment at which the limit could be reached with
every processor busy.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Reason = Literal["", "wall", "cpu", "memory", "processes"]


class Reading:
    """Usage of all processes of a run together at one moment."""

    __slots__ = ("cpu_s", "denied_forks", "oom_kills", "outside_kills", "resident_bytes", "starved_s")

    def __init__(
        self,
        cpu_s: float,
        resident_bytes: int = 0,
        oom_kills: int = 0,
        denied_forks: int = 0,
        starved_s: float = 0.0,
        outside_kills: int = 0,
    ) -> None:
        self.cpu_s = cpu_s
        self.resident_bytes = resident_bytes
        self.oom_kills = oom_kills
        self.denied_forks = denied_forks
        self.starved_s = starved_s
        """The longest that one of them was ready to run and had no processor, since it began."""
        self.outside_kills = outside_kills
        """Processes that the kernel killed because a group above this one, or the machine, had no memory left."""

    def add(self, alive: Reading) -> None:
        """Adds what was seen of the processes while they lived to a reading of the dead."""
        self.resident_bytes = alive.resident_bytes
        self.oom_kills += alive.oom_kills
        self.outside_kills += alive.outside_kills
        self.denied_forks += alive.denied_forks


SAMPLE_S = 0.025
"""Between two looks at the resident memory where no control group guards it."""
TICK_S = 0.1
"""Between two looks where a control group guards the memory; they notice its kills of single processes."""
RESTING_S = 1.0
"""The same while a session rests: hundreds of them may, and only what a cell has left behind uses memory."""
_SHORTEST_S = 0.01
PATIENCE = 3.0
"""A program that waits for processors may take so many times its wall time; beyond, waiting counts."""


class Watch:
    """The limits of one run, from its start at `now` (monotonic seconds)."""

    def __init__(
        self,
        now: float,
        *,
        wall_s: float,
        cpu_s: float,
        memory_bytes: int,
        sample_memory: bool,
        processors: int,
        tick_s: float = 0.0,
    ) -> None:
        self.started = now
        self._wall_s = wall_s
        self._cpu_limit_s = cpu_s
        self.memory_bytes = memory_bytes
        self._sample_memory = sample_memory
        self._processors = processors
        self._credit_s = 0.0
        self._tick_s = tick_s or (SAMPLE_S if sample_memory else TICK_S)
        self.cpu_s = 0.0
        self.peak_bytes = 0

    def observe(self, now: float, reading: Reading) -> Reason:
        """The limit that is used up, or an empty string."""
        self.cpu_s = max(self.cpu_s, reading.cpu_s)
        self.peak_bytes = max(self.peak_bytes, reading.resident_bytes)
        if reading.oom_kills or (self._sample_memory and reading.resident_bytes > self.memory_bytes):
            return "memory"
        if reading.denied_forks:
            return "processes"
        if self.cpu_s >= self._cpu_limit_s:
            return "cpu"
        self._credit_s = max(self._credit_s, min(reading.starved_s, self._wall_s * (PATIENCE - 1)))
        if self.late(now):
            return "wall"
        return ""

    @property
    def rests(self) -> bool:
        """True while a session rests."""
        return self._tick_s == RESTING_S

    def late(self, now: float) -> bool:
        """Says whether the wall time is over, allowing for the known time spent waiting for a processor."""
        return now - self.started >= self._wall_s + self._credit_s

    def wait_s(self, now: float) -> float:
        """Time until the next observation has to be made."""
        cpu = (self._cpu_limit_s - self.cpu_s) / self._processors
        return max(0.0, min(self.started + self._wall_s + self._credit_s - now, self._tick_s, max(cpu, _SHORTEST_S)))
