"""State that all parts of one simulation share, and the start and end of its processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

from limiter.core.limits import CLOCK_RATE_ERROR
from tests.limiter.sim.checker import Checker
from tests.limiter.sim.clock import MachineClock
from tests.limiter.sim.loop import Process, SimLoop
from tests.limiter.sim.network import Network
from tests.limiter.sim.scenario import Scenario
from tests.limiter.sim.trace import Trace

LIMITER = "limiter"
"""The service that clients and executors connect to."""
STORE = "store"
"""The process that keeps the record of who leads."""


class Node(Protocol):
    """A program that runs as one process."""

    process: Process

    async def run(self) -> None:
        """Until it was told to leave; cancelled when it is killed."""
        ...

    def leave(self) -> None:
        """Shuts down in order. Idempotent."""
        ...

    def died(self) -> None:
        """It was killed: what belonged to it dies with it."""
        ...


class ProcessClock:
    """The `fairbox.clock.Clock` of a process."""

    def __init__(self, loop: SimLoop, process: Process) -> None:
        self._loop = loop
        self._clock = process.clock

    def now(self) -> float:
        return self._clock.at(self._loop.true_time)


class World:
    """One simulated cluster."""

    def __init__(
        self,
        scenario: Scenario,
        loop: SimLoop,
        make: Callable[[World, str], Node],
        show: Callable[[str], None] | None = None,
    ) -> None:
        """`make` makes the node of a name; `show` gets every line of the trace."""
        self.scenario = scenario
        self.loop = loop
        self.trace = Trace(lambda: loop.true_time, show)
        self.network = Network(loop, self.rng("network"), self.trace)
        limits = {bucket.name: bucket.max_in_flight for bucket in scenario.buckets}
        self.checker = Checker(loop, self.trace, limits)
        self.nodes: dict[str, Node] = {}
        """Running nodes, by name."""
        self.given: set[tuple[tuple[int, int], str]] = set()
        """Leases with a hold time that were granted, and to which sessions."""
        self.busy = True
        """True while clients ask for more."""
        self._make = make
        self._clocks: dict[str, MachineClock] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: list[asyncio.Task[None]] = []
        self._lives = 0

    def rng(self, name: str) -> random.Random:
        """A source of randomness of its own for each part, so that one does not disturb the others."""
        return random.Random(f"{self.scenario.seed}/{name}")

    def process(self, name: str) -> Process:
        """A new process on the machine of that name."""
        clock = self._clocks.get(name)
        if clock is None:
            rng = self.rng(f"clock {name}")
            rate = 1 + rng.uniform(-CLOCK_RATE_ERROR, CLOCK_RATE_ERROR)
            clock = self._clocks[name] = MachineClock(rate, rng.uniform(0.0, 1e5))
        self.network.back(name)
        return Process(name, clock)

    def life(self) -> int:
        """Numbers the starts of processes, for names that must not repeat."""
        self._lives += 1
        return self._lives

    def start(self, name: str) -> None:
        """Runs a node; one of that name must not run."""
        assert name not in self.nodes
        node = self._make(self, name)
        self.trace.event(f"{name} starts")
        self.nodes[name] = node
        self._tasks[name] = self.loop.spawn(node.process, node.run)

    def kill(self, name: str, *, lost: bool = False) -> None:
        """Kills a process; with `lost` its machine too, until a process is started there."""
        node = self.nodes.pop(name)
        self.trace.event(f"{name} {'is lost' if lost else 'dies'}")
        node.process.dead = True
        self.network.killed(node.process, lost=lost)
        node.died()
        task = self._tasks.pop(name)
        task.cancel()
        self._ending.append(task)
        if node.process.stopped:
            self.loop.resume_process(node.process)

    def restart(self, node: Node) -> None:
        """A process has ended by itself, and is started again unless that has happened already."""
        name = node.process.name
        if self.nodes.get(name) is node:
            self.kill(name)
            self.start(name)

    async def leave(self, name: str) -> None:
        """Lets a process shut down in order, and waits for it."""
        node = self.nodes.pop(name)
        self.trace.event(f"{name} leaves")
        node.leave()
        task = self._tasks.pop(name)
        self._ending.append(task)
        await asyncio.wait([task])

    async def ended(self) -> None:
        """Waits for everything that was killed or told to leave; its errors are violations."""
        for task in self._ending:
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                self.checker.violated("error", f"a process has failed: {error!r}")
        self._ending.clear()
