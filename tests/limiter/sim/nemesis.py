"""Does to the cluster what the scenario's faults say, at random times, and stops in time for all to become quiet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from limiter.core import LeaseState
from limiter.core.events import Revoke
from tests.limiter.sim.limiter_node import LimiterNode
from tests.limiter.sim.loop import Process
from tests.limiter.sim.scenario import Fault
from tests.limiter.sim.world import STORE, World

LONGEST_HICCUP_S = 0.05
"""With the times of executor_node.py less than an executor's margin: 0.1 s, and 2 % of its ttl for clocks at 1 %."""
_CLIENTS, _EXECUTORS, _LIMITERS = "client", "executor", "limiter"
_WAYS = (
    (_LIMITERS, _EXECUTORS),
    (_LIMITERS, _EXECUTORS),
    (_LIMITERS, _CLIENTS),
    (_LIMITERS, STORE),
    (_CLIENTS, _EXECUTORS),
)
"""Pairs between which ways are blocked."""


class Nemesis:
    """`await run()` once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("nemesis")
        self._tasks: list[asyncio.Task[None]] = []
        self._busy: set[str] = set()
        """Names of processes that are on their way down or up, or stopped."""
        self._acts: dict[Fault, Callable[[], Awaitable[None]]] = {
            Fault.CLIENT_CRASH: lambda: self._crash(_CLIENTS),
            Fault.CLIENT_LEAVE: lambda: self._leave(_CLIENTS),
            Fault.CLIENT_PAUSE: lambda: self._pause(_CLIENTS, 0.1, 8.0),
            Fault.EXECUTOR_CRASH: lambda: self._crash(_EXECUTORS),
            Fault.EXECUTOR_LEAVE: lambda: self._leave(_EXECUTORS),
            Fault.EXECUTOR_HICCUP: lambda: self._pause(_EXECUTORS, 0.0, LONGEST_HICCUP_S),
            Fault.EXECUTOR_STOP: self._stop_executor,
            Fault.LIMITER_CRASH: lambda: self._crash(_LIMITERS),
            Fault.LIMITER_LEAVE: lambda: self._leave(_LIMITERS),
            Fault.LIMITER_PAUSE: lambda: self._pause(_LIMITERS, 0.1, 8.0),
            Fault.STORE_PAUSE: lambda: self._pause(STORE, 0.1, 8.0),
            Fault.MACHINE_LOSS: lambda: self._crash("", lost=True),
            Fault.RESET: self._reset,
            Fault.PARTITION: lambda: self._partition(both=True),
            Fault.ONE_WAY: lambda: self._partition(both=False),
            Fault.SLOW_WAY: self._slow,
            Fault.FADING: self._fade,
            Fault.DEPOSED: self._depose,
            Fault.REVOKE: self._revoke,
        }

    async def run(self) -> None:
        """Until the busy time is over and everything that was taken away is back."""
        world, rng, scenario = self._world, self._rng, self._world.scenario
        await asyncio.sleep(1.0)
        while scenario.faults and world.loop.true_time < scenario.busy:
            await asyncio.sleep(rng.expovariate(1 / scenario.fault_every))
            fault = rng.choice(scenario.faults)
            world.checker.count(f"fault: {fault}")
            task = world.loop.create_task(self._act(fault))
            self._tasks.append(task)
        for task in self._tasks:
            await task
        await asyncio.sleep(max(0.0, world.network.healed_at() - world.loop.true_time))

    async def _act(self, fault: Fault) -> None:
        await self._acts[fault]()

    def _victim(self, kind: str) -> str | None:
        names = [name for name in self._world.nodes if name.startswith(kind) and name not in self._busy]
        return self._rng.choice(names) if names else None

    async def _crash(self, kind: str, *, lost: bool = False) -> None:
        name = self._victim(kind)
        if name is None or name == STORE:
            return
        self._busy.add(name)
        self._world.kill(name, lost=lost)
        await asyncio.sleep(self._rng.choice([0.05, 2.0, 2.0, 8.0]) * self._rng.random())
        self._world.start(name)
        self._busy.remove(name)

    async def _leave(self, kind: str) -> None:
        name = self._victim(kind)
        if name is None:
            return
        self._busy.add(name)
        await self._world.leave(name)
        await asyncio.sleep(2.0 * self._rng.random())
        self._world.start(name)
        self._busy.remove(name)

    async def _pause(self, kind: str, shortest: float, longest: float) -> None:
        name = self._victim(kind)
        if name is None:
            return
        self._busy.add(name)
        process = self._world.nodes[name].process
        await self._stop(process, self._rng.uniform(shortest, longest))
        if kind == _EXECUTORS:
            await asyncio.sleep(1.0)  # pauses that follow each other would add up
        self._busy.remove(name)

    async def _stop_executor(self) -> None:
        name = self._victim(_EXECUTORS)
        if name is None:
            return
        self._busy.add(name)
        process, checker = self._world.nodes[name].process, self._world.checker
        checker.excuse(process)
        await self._stop(process, self._rng.uniform(0.1, 8.0))
        await asyncio.sleep(0.2)
        checker.judge_again(process)
        self._busy.remove(name)

    async def _stop(self, process: Process, seconds: float) -> None:
        world = self._world
        world.trace.event(f"{process} stops for {seconds:.3f} s")
        world.loop.stop_process(process)
        await asyncio.sleep(seconds)
        order = self._rng.choice(["as they came", "messages first", "messages first", "timers first"])
        world.loop.resume_process(process, order)
        world.trace.event(f"{process} goes on, {order}")

    async def _reset(self) -> None:
        ends = list(self._world.network.ends)
        if ends:
            end = self._rng.choice(ends)
            self._world.trace.event(f"{end.name} and {end.peer.name} are reset")
            self._world.network.reset(end)

    def _way(self) -> tuple[str, str] | None:
        """Two machines that have something to say to each other."""
        kinds = self._rng.choice(_WAYS)
        ends = [[name for name in self._world.nodes if name.startswith(kind)] for kind in kinds]
        if not all(ends):
            return None
        first, second = self._rng.choice(ends[0]), self._rng.choice(ends[1])
        return (first, second) if self._rng.random() < 0.5 else (second, first)

    async def _partition(self, *, both: bool) -> None:
        way = self._way()
        if way is None:
            return
        for source, target in (way, way[::-1]) if both else (way,):
            seconds = min(20.0, self._rng.expovariate(1 / self._world.scenario.cut))
            self._world.trace.event(f"{source} does not reach {target} for {seconds:.3f} s")
            self._world.network.block(source, target, seconds)

    async def _slow(self) -> None:
        way = self._way()
        if way is None:
            return
        seconds, extra = self._rng.uniform(0.5, 20.0), self._rng.uniform(0.1, 3.0)
        self._world.trace.event(f"{way[0]} reaches {way[1]} only in {extra:.3f} s for {seconds:.3f} s")
        self._world.network.slow(*way, seconds, extra)

    async def _fade(self) -> None:
        world, rng, ttl = self._world, self._rng, self._world.scenario.timing.executor_ttl
        leaders = [name for name, node in world.nodes.items() if isinstance(node, LimiterNode) and node.leads]
        executor = self._victim(_EXECUTORS)
        if not leaders or executor is None:
            return
        extra, seconds = ttl * rng.uniform(0.0, 0.45), ttl * rng.uniform(1.0, 2.5)
        world.trace.event(f"{executor} fades: slower by {extra:.3f} s, then not heard for {seconds:.3f} s")
        world.network.slow(leaders[0], executor, ttl, extra)
        await asyncio.sleep(ttl * rng.uniform(0.5, 1.0))
        world.network.block(executor, leaders[0], seconds)

    async def _depose(self) -> None:
        world = self._world
        leaders = [name for name, node in world.nodes.items() if isinstance(node, LimiterNode) and node.leads]
        if not leaders or STORE not in world.nodes:
            return
        scenario = world.scenario
        seconds = (
            self._rng.uniform(1.0, 2.5) * scenario.lead + self._rng.uniform(0.0, 2.0) * scenario.timing.executor_ttl
        )
        world.trace.event(f"{leaders[0]} and the store do not reach each other for {seconds:.3f} s")
        world.network.block(leaders[0], STORE, seconds)
        world.network.block(STORE, leaders[0], seconds)

    async def _revoke(self) -> None:
        name = self._victim(_LIMITERS)
        node = self._world.nodes[name] if name is not None else None
        if not isinstance(node, LimiterNode) or node.runner is None or not node.leads:
            return
        # What is held without a bind goes on when it is revoked, so that is left alone.
        leases = [lease for lease in node.runner.core.leases() if lease.state is not LeaseState.HELD]
        if leases:
            lease = self._rng.choice(leases)
            self._world.checker.count(f"revoked {LeaseState(lease.state)}")
            revoke = Revoke(lease.lease_id, force=True)
            self._world.loop.hand_over(node.process, node.runner.apply, revoke)
