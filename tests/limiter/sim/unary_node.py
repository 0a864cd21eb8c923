"""A client of unary calls as a simulated process: asks, runs under what it is granted, gives back by its own ids."""

from __future__ import annotations

import asyncio

from limiter import Lease
from limiter.core.effects import Granted
from limiter.core.events import Acquire, Cancel
from tests.limiter.sim.checker import Program
from tests.limiter.sim.client_node import Execute, execute, run_held
from tests.limiter.sim.connection import Broken, dial
from tests.limiter.sim.unary import Answer
from tests.limiter.sim.world import LIMITER, World

UNARY = "client-unary"
"""Prefix of their names."""
_UNBOUND_TTL_S = 5.0
_BACKSTOP_S = 10.0
_RELEASE_WITHIN_S = 5.0
_SLACK_S = 0.5


class UnaryNode:
    """One client, one call at a time."""

    def __init__(self, world: World, name: str) -> None:
        self.process = world.process(name)
        life = world.life()
        self._world = world
        self._client_id = f"unary:{name}.{life}"
        self._rng = world.rng(f"unary {life}")
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._serial = 0

    @property
    def idle(self) -> bool:
        """True if it has nothing more to ask."""
        return self._task is not None and self._task.done()

    async def run(self) -> None:
        task = self._task = asyncio.create_task(self._work())
        try:
            await self._leaving.wait()
        finally:
            task.cancel()
            await asyncio.wait([task])

    def leave(self) -> None:
        self._leaving.set()

    def died(self) -> None:
        """Nothing is left of it."""

    async def _work(self) -> None:
        world, rng = self._world, self._rng
        while world.busy:
            await asyncio.sleep(rng.expovariate(1 / world.scenario.think))
            if world.busy:
                await self._one()

    async def _one(self) -> None:
        world, rng, checker = self._world, self._rng, self._world.checker
        self._serial += 1
        limits = rng.choice(world.scenario.buckets)
        bucket, hold = limits.name, rng.uniform(1.0, 10.0) if limits.max_hold and rng.random() < 0.7 else 0.0
        timeout = rng.choice([0.3, 3.0, 20.0])
        patience = rng.choice([timeout + _BACKSTOP_S, timeout + _BACKSTOP_S, rng.uniform(0.0, 0.05), rng.random()])
        ask = Acquire(
            self._client_id,
            str(self._serial),
            bucket=bucket,
            queue_timeout=timeout,
            start_by=_UNBOUND_TTL_S,
            hold=hold,
            tenant=f"t{rng.randrange(world.scenario.tenants)}" if world.scenario.tenants else "",
            unary=True,
        )
        asked, stopped = world.loop.time(), self.process.stopped_for
        try:
            answer = await self._call(ask, patience)
            checker.count(f"unary: {answer.refused or 'granted'}")
            took = world.loop.time() - asked - (self.process.stopped_for - stopped) * 1.02
            if took > timeout + _BACKSTOP_S + _SLACK_S:
                checker.violated("late", f"a unary call took {took:.1f} s, its queue timeout was {timeout}")
            if answer.granted is not None:
                await self._use(answer.granted, hold)
        finally:
            if not self.process.dead:
                await self._call(Cancel(self._client_id, ask.request_id), _RELEASE_WITHIN_S)

    async def _use(self, granted: Granted, hold: float) -> None:
        """Runs a program under its lease."""
        world, rng = self._world, self._rng
        if rng.random() < 0.1:
            return  # forgets to use it
        lease = Lease(granted.bucket, granted.lease.epoch, granted.lease.seq, granted.session_id)
        seconds = min(20.0, rng.expovariate(1 / world.scenario.program))
        run_id = f"{self._client_id}.{self._serial}.{lease.seq}"
        if hold:
            program = Program(run_id, self.process, granted.bucket, 1, held=granted.lease, reported=False)
            await run_held(world, program, hold, seconds)
            return
        await execute(world, rng, self.process, Execute(run_id, granted.bucket, 1, seconds, lease))

    async def _call(self, call: Acquire | Cancel, within: float) -> Answer:
        """Calls the limiter; call or answer can be lost."""
        end = dial(self._world.network, self.process, LIMITER)
        try:
            async with asyncio.timeout(within):
                await end.send(call)
                answer = await end.receive()
                assert isinstance(answer, Answer)
                return answer
        except (Broken, TimeoutError):
            return Answer(refused="lost")
        finally:
            end.abort()
