"""A client as a simulated process: tasks that ask, change their minds, and pass their leases to executors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace

from limiter import BindStatus, Lease, LimiterClient, LimiterError
from tests.limiter.sim.checker import Program
from tests.limiter.sim.connection import Broken, dial
from tests.limiter.sim.loop import Process
from tests.limiter.sim.transport import SimTransport
from tests.limiter.sim.world import LIMITER, ProcessClock, World

_TASKS = 2
_ANSWER_BACKSTOP_S = 10.0
"""Margin that a client adds to a queue timeout before it takes the limiter for gone; see limiter.client.session."""
_SLACK_S = 0.5
_BACKSTOP = "did not answer in time"
"""Text of LimiterUnavailable in that case."""


@dataclass(frozen=True, slots=True)
class Execute:
    """A request to an executor: ExecuteCode, as far as the limiter is concerned."""

    run_id: str
    bucket: str
    tokens: int
    seconds: float
    """Duration of the program."""
    lease: Lease | None
    """None: the executor has to get one."""


class ClientNode:
    """One client."""

    def __init__(self, world: World, name: str) -> None:
        self.process = world.process(name)
        life = world.life()
        self._world = world
        self._label = f"{name}.{life}"
        self._rng = world.rng(f"client {life}")
        self.client = LimiterClient(
            LIMITER,
            name=name,
            unavailable_after=world.scenario.unavailable_after,
            clock=ProcessClock(world.loop, self.process),
            transport=SimTransport(world.network, self.process, LIMITER),
            rng=self._rng,
        )
        self._leaving = asyncio.Event()
        self._serial = 0
        self._held: dict[Program, None] = {}
        """Programs under leases that nobody binds."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def idle(self) -> bool:
        """True if its tasks have nothing more to ask."""
        return bool(self._tasks) and all(task.done() for task in self._tasks)

    async def run(self) -> None:
        async with self.client:
            tasks = self._tasks = [asyncio.create_task(self._work()) for _ in range(_TASKS)]
            try:
                await self._leaving.wait()
            finally:
                for task in tasks:
                    task.cancel()
                for task in tasks:
                    await asyncio.wait([task])

    def leave(self) -> None:
        self._leaving.set()

    def died(self) -> None:
        """Programs under its leases go on elsewhere, and nobody reports them to a new limiter."""
        for program in self._held:
            program.reported = False

    def prober(self, bucket: str) -> Callable[[], Coroutine[None, None, None]]:
        """Asks for one short lease, when all is quiet. Raises LimiterError."""

        async def probe() -> None:
            async with self.client.lease(bucket, queue_timeout=5.0):
                await asyncio.sleep(0.01)

        return probe

    async def _work(self) -> None:
        world, rng = self._world, self._rng
        while world.busy:
            await asyncio.sleep(rng.expovariate(1 / world.scenario.think))
            if world.busy:
                await self._one()

    async def _one(self) -> None:
        """One request from asking to its end."""
        world, rng, checker = self._world, self._rng, self._world.checker
        self._serial += 1
        bucket = rng.choice(world.scenario.buckets)
        tokens = rng.randint(1, bucket.max_in_flight) if world.scenario.heavy and rng.random() < 0.3 else 1
        seconds = min(20.0, rng.expovariate(1 / world.scenario.program))
        request = Execute(f"{self._label}.{self._serial}", bucket.name, tokens, seconds, None)
        hold = rng.uniform(1.0, 10.0) if bucket.max_hold else 0.0
        if rng.random() < 0.1 and not hold:
            await self._execute(request)
            return
        timeout = rng.choice([0.3, 3.0, 20.0, 20.0])
        patience = rng.choice([None, None, None, None, rng.uniform(0.0, 0.05), rng.uniform(0.0, 5.0)])
        tenant = f"t{rng.randrange(world.scenario.tenants)}" if world.scenario.tenants else ""
        asked, stopped = world.loop.time(), self.process.stopped_for
        try:
            async with asyncio.timeout(patience) as changed:
                async with self.client.lease(
                    request.bucket, request.tokens, queue_timeout=timeout, tenant=tenant, hold=hold
                ) as lease:
                    if rng.random() < 0.9 or hold:
                        changed.reschedule(None)
                    self._check_wait(request, asked, stopped, timeout)
                    await (self._hold(request, lease, hold) if hold else self._use(request, lease))
                    return
        except TimeoutError:
            checker.count("changed mind")
        except LimiterError as error:
            checker.count(type(error).__name__)
            if _BACKSTOP in str(error) and world.scenario.prompt and self.client.connected:
                checker.violated("late", f"the limiter has never answered {request.run_id}")
        if patience is None:
            self._check_wait(request, asked, stopped, timeout)

    def _check_wait(self, request: Execute, asked: float, stopped: float, timeout: float) -> None:
        took = self._world.loop.time() - asked - (self.process.stopped_for - stopped) * 1.02
        if took > timeout + _ANSWER_BACKSTOP_S + _SLACK_S:
            self._world.checker.violated("late", f"{request.run_id} waited {took:.1f} s, asked for {timeout}")

    async def _use(self, request: Execute, lease: Lease) -> None:
        """Passes the lease on, perhaps more than once."""
        rng = self._rng
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.01, 0.3]))
        if rng.random() < 0.05:
            return  # forgets to use it
        request = Execute(request.run_id, request.bucket, request.tokens, request.seconds, lease)
        answer = await self._execute(request)
        if answer == "lost" and rng.random() < 0.5:
            await self._execute(request)
        if answer == BindStatus.WRONG_EPOCH and self._world.scenario.extended:
            await self._replace(request, lease)

    async def _hold(self, request: Execute, lease: Lease, hold: float) -> None:
        """Runs something under a lease that nobody binds, and tells new limiters of it while this client lives."""
        program = Program(request.run_id, self.process, request.bucket, request.tokens, held=(lease.epoch, lease.seq))
        if lease not in self.client.held:
            return
        self._held[program] = None
        await run_held(self._world, program, hold, request.seconds)
        self._held.pop(program, None)

    async def _replace(self, request: Execute, void: Lease) -> None:
        """Asks for the place of a lease that nobody had bound when its limiter died."""
        self._world.checker.count("asked instead")
        async with self.client.lease(request.bucket, request.tokens, queue_timeout=5.0, instead_of=void) as lease:
            await self._execute(replace(request, run_id=f"{request.run_id}.again", lease=lease))

    async def _execute(self, request: Execute) -> str:
        return await execute(self._world, self._rng, self.process, request)


async def run_held(world: World, program: Program, hold: float, seconds: float) -> None:
    """Runs a program under a lease that nobody binds, for no longer than that is granted for."""
    assert program.held is not None
    checker = world.checker
    left = min(checker.granted_at[program.held] + hold * 0.97 - world.loop.true_time, seconds)
    if left <= 0:
        return
    checker.count("held")
    checker.started(program)
    # It runs elsewhere, and ends there in time, whatever becomes of its client.
    world.loop.after(left, checker.stopped, program)
    try:
        await asyncio.sleep(left * 1.02)
    finally:
        if not program.executor.dead:
            checker.stopped(program)


async def execute(world: World, rng: random.Random, process: Process, request: Execute) -> str:
    """Calls an executor; the request or the answer can be lost."""
    if not world.scenario.executors:
        return "nobody"
    target = f"executor{rng.randrange(world.scenario.executors)}"
    end = dial(world.network, process, target)
    try:
        async with asyncio.timeout(request.seconds + rng.choice([1.0, 10.0])):
            await end.send(request)
            answer = str(await end.receive())
    except (Broken, TimeoutError):
        answer = "lost"
    finally:
        end.abort()
    world.checker.count(f"answer: {answer}")
    return answer
