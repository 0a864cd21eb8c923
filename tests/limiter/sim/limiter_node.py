"""The limiter as a simulated process: production term, core and runner behind the simulated network."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from limiter.leadership import Alone, Elector, Leadership, LeadershipLost, Term
from limiter.server.core_runner import CoreRunner
from limiter.server.leader_term import LeaderTerm
from tests.limiter.sim.connection import End
from tests.limiter.sim.records import SimRecords
from tests.limiter.sim.transport import serve_session
from tests.limiter.sim.unary import serve_any
from tests.limiter.sim.watch import watch
from tests.limiter.sim.world import LIMITER, ProcessClock, World

_DRAIN_S = 1.0
_FORGOTTEN_WITHIN_S = 1.0
"""A service routes to a process that is not ready any more for this long."""


class SimAlone(Alone):
    """`leader=none` with epochs that do not come from the wall clock."""

    def __init__(self, world: World, *, fresh: bool) -> None:
        super().__init__(fresh=fresh)
        self._life = world.life()

    async def campaign(self) -> Term:
        """At once."""
        term = await super().campaign()
        return replace(term, epoch=self._life)


class LimiterNode:
    """One limiter."""

    def __init__(self, world: World, name: str) -> None:
        self.process = world.process(name)
        self.runner: CoreRunner | None = None
        self._world = world
        self._leaving = asyncio.Event()
        self._streams: dict[asyncio.Task[None], None] = {}
        self._rng = world.rng(f"limiter {world.life()}")

    @property
    def leads(self) -> bool:
        """True if it decides anything."""
        return self.runner is not None and not self.runner.closed

    async def run(self) -> None:
        world, process, scenario = self._world, self.process, self._world.scenario
        term = LeaderTerm(
            self._leadership(),
            ProcessClock(world.loop, process),
            buckets=scenario.buckets,
            timing=scenario.timing,
            on_runner=self._lead,
        )
        world.network.listen(process, self._accept)
        leading = asyncio.create_task(term.run())
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            await asyncio.wait([leading, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            leading.cancel()
            world.loop.after(self._rng.uniform(0.0, _FORGOTTEN_WITHIN_S), self._forgotten)
            await asyncio.wait([leading])
            world.network.unlisten(process)
            if self._streams and not process.dead:
                await asyncio.wait(list(self._streams), timeout=_DRAIN_S)
            for stream in list(self._streams):
                stream.cancel()
                await asyncio.wait([stream])
        if not leading.cancelled() and (error := leading.exception()) is not None:
            if not isinstance(error, LeadershipLost):
                raise error
            world.checker.count("lost the lead")
            world.loop.after(self._rng.uniform(0.0, 1.0), world.restart, self)

    def leave(self) -> None:
        self._leaving.set()

    def died(self) -> None:
        """Nothing is left of it."""

    def _leadership(self) -> Leadership:
        world, scenario = self._world, self._world.scenario
        if scenario.limiters == 0:
            return SimAlone(world, fresh=world.loop.true_time == 0.0)
        clock = ProcessClock(world.loop, self.process)
        return Elector(
            SimRecords(world.network, self.process),
            clock,
            identity=self.process.name,
            duration=scenario.lead,
            fresh=True,
            jitter=self._rng,
        )

    def _lead(self, runner: CoreRunner) -> None:
        self.runner = runner
        self._world.checker.count("leads")
        self._world.checker.excuse_unreported()
        watch(runner.core, self._world, self.process)
        for bucket in self._world.scenario.buckets:
            self._world.checker.configured(bucket.name, bucket.max_in_flight)
        self._world.network.offer(LIMITER, self.process.name, offered=True)

    def _forgotten(self) -> None:
        """Asks the process that runs under this name by then again when it leads."""
        node = self._world.nodes.get(self.process.name)
        if node is None or node is self or not (isinstance(node, LimiterNode) and node.leads):
            self._world.network.offer(LIMITER, self.process.name, offered=False)

    def _accept(self, end: End) -> None:
        if self.runner is None or self.runner.closed:
            end.abort()
            return
        if self._world.scenario.extended:
            task = asyncio.create_task(serve_any(end, self.runner))
        else:
            task = asyncio.create_task(serve_session(end, self.runner))
        self._streams[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._streams.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.checker.violated("error", f"a stream of {self.process} has failed: {error!r}")
