"""A simulated network: who listens where, which ways are blocked, which machines are down, and how long things take.

Blocked ways are one-way: what is sent meanwhile waits and arrives some time after they open again, as with TCP. A
message takes about a millisecond, now and then a few hundred. A machine that is lost says nothing; a process that dies
has its connections reset by its machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.limiter.sim.loop import Process, SimLoop
from tests.limiter.sim.trace import Trace

if TYPE_CHECKING:
    from tests.limiter.sim.connection import End

Accept = Callable[["End"], None]


class Network:
    """Everything between processes. Processes are reached by name, or by a service that several may offer."""

    def __init__(self, loop: SimLoop, rng: random.Random, trace: Trace) -> None:
        self.loop = loop
        self.rng = rng
        self.trace = trace
        self.down: set[str] = set()
        """Machines that are lost."""
        self.ends: dict[End, None] = {}
        """All ends that are open."""
        self._blocked: dict[tuple[str, str], float] = {}
        self._slow: dict[tuple[str, str], tuple[float, float]] = {}
        self._listening: dict[str, tuple[Process, Accept]] = {}
        self._offers: dict[str, list[str]] = {}

    # Who is reached

    def listen(self, process: Process, accept: Accept) -> None:
        """Connections to the process's name are given to `accept`, in the process."""
        self._listening[process.name] = (process, accept)

    def unlisten(self, process: Process) -> None:
        """Connections are refused from now on. Idempotent."""
        if self._listening.get(process.name, (None,))[0] is process:
            del self._listening[process.name]

    def listener(self, name: str) -> tuple[Process, Accept] | None:
        """Process that takes connections to a name."""
        return self._listening.get(name)

    def offer(self, service: str, name: str, *, offered: bool) -> None:
        """Sets whether connections to a service may go to that name."""
        names = self._offers.setdefault(service, [])
        if offered and name not in names:
            names.append(name)
        elif not offered and name in names:
            names.remove(name)

    def resolve(self, service: str) -> str:
        """A name that offers the service, or the service itself, taken for a name."""
        names = self._offers.get(service)
        return self.rng.choice(names) if names else service

    # What befalls it

    def block(self, source: str, target: str, seconds: float) -> None:
        """Nothing gets from `source` to `target` for a time."""
        until = self.loop.true_time + seconds
        self._blocked[source, target] = max(until, self._blocked.get((source, target), 0.0))

    def blocked_until(self, source: str, target: str) -> float:
        """Time at which the way is open again; in the past if it is open."""
        return self._blocked.get((source, target), 0.0)

    def healed_at(self) -> float:
        """Time at which every way is open again."""
        return max(self._blocked.values(), default=0.0)

    def slow(self, source: str, target: str, seconds: float, extra: float) -> None:
        """Messages from `source` to `target` take `extra` seconds more for a time."""
        self._slow[source, target] = (self.loop.true_time + seconds, extra)

    def delay(self, source: str, target: str) -> float:
        """Delay of a message that is sent now."""
        rng = self.rng
        delay = 0.0002 + rng.random() ** 3 * 0.004
        until, extra = self._slow.get((source, target), (0.0, 0.0))
        if until > self.loop.true_time:
            delay += extra * rng.uniform(0.5, 1.0)
        return delay + 0.2 * rng.random() if rng.random() < 0.01 else delay

    def killed(self, process: Process, *, lost: bool) -> None:
        """A process has died; with `lost` its machine as well, so that nobody is told until it is back."""
        self.unlisten(process)
        for end in [each for each in self.ends if each.process is process]:
            if lost:
                end.fail()
            else:
                end.abort()
        if lost:
            self.down.add(process.name)

    def back(self, name: str) -> None:
        """The machine runs again, and answers to old connections that it does not know them."""
        self.down.discard(name)

    def reset(self, end: End) -> None:
        """The connection breaks: what is on its way either way is lost."""
        for each in (end, end.peer):
            each.lose_outbox()
            if each.process is not None:
                self.loop.hand_over(each.process, each.fail)
