"""An executor as a simulated process: binds what it is given, sets up, checks again, runs, kills and releases.

Its promise: user code starts within `_START_WITHIN_S` of the last check, and is dead within `_KILL_WITHIN_S` of the
lapse or loss of its lease. Together with the longest pause that EXECUTOR_HICCUP makes that stays below what the limiter
waits beyond an executor's validity, whatever their clocks do.
"""

from __future__ import annotations

import asyncio
import contextlib

from limiter import BindStatus, ExecutorSession, Lease, LimiterError
from tests.limiter.sim.checker import Program
from tests.limiter.sim.client_node import Execute
from tests.limiter.sim.connection import Broken, End
from tests.limiter.sim.transport import SimTransport
from tests.limiter.sim.world import LIMITER, ProcessClock, World

_START_WITHIN_S = 0.003
_KILL_WITHIN_S = 0.08


class ExecutorNode:
    """One executor."""

    def __init__(self, world: World, name: str) -> None:
        self.process = world.process(name)
        life = world.life()
        self._world = world
        self._rng = world.rng(f"executor {life}")
        self.session = ExecutorSession(
            LIMITER,
            executor_id=name,
            unavailable_after=world.scenario.unavailable_after,
            clock=ProcessClock(world.loop, self.process),
            transport=SimTransport(world.network, self.process, LIMITER),
            rng=self._rng,
        )
        self._leaving = asyncio.Event()
        self._calls: dict[asyncio.Task[None], None] = {}
        self._runs: dict[str, asyncio.Task[str]] = {}
        """By run id: a repeated request joins the run, or gets its answer again."""
        self._programs: dict[Program, None] = {}

    async def run(self) -> None:
        network = self._world.network
        async with self.session:
            network.listen(self.process, self._accept)
            try:
                await self._leaving.wait()
            finally:
                network.unlisten(self.process)
                tasks = [*self._runs.values(), *self._calls]
                for task in tasks:
                    task.cancel()
                for task in tasks:
                    await asyncio.wait([task])

    def leave(self) -> None:
        self._leaving.set()

    def died(self) -> None:
        for program in self._programs:
            self._world.loop.after(self._rng.uniform(0, _KILL_WITHIN_S), self._world.checker.stopped, program)

    @property
    def idle(self) -> bool:
        """True if nothing runs or is being set up."""
        return all(run.done() for run in self._runs.values())

    def _accept(self, end: End) -> None:
        task = asyncio.create_task(self._call(end))
        self._calls[task] = None
        task.add_done_callback(self._calls.pop)

    async def _call(self, end: End) -> None:
        """Answers one call. The run goes on when the caller goes away."""
        try:
            request = await end.receive()
            assert isinstance(request, Execute)
            run = self._runs.get(request.run_id)
            if run is None:
                run = self._runs[request.run_id] = asyncio.create_task(self._run(request))
            await asyncio.wait([run])
            await end.send("cancelled" if run.cancelled() else run.result())
            end.finish()
            end.fail()
        except Broken:
            pass
        finally:
            end.abort()

    async def _run(self, request: Execute) -> str:
        try:
            if request.lease is not None:
                return await self._run_under(request, request.lease)
            async with self.session.acquire(
                request.bucket, request.tokens, queue_timeout=5.0, run_id=request.run_id
            ) as lease:
                return await self._program(request, lease)
        except LimiterError as error:
            return type(error).__name__

    async def _run_under(self, request: Execute, lease: Lease) -> str:
        """Binds while it sets up, as executor_service does."""
        rng = self._rng
        if not self.session.valid:
            return "not valid"
        binding = asyncio.create_task(self.session.bind(lease, run_id=request.run_id))
        try:
            await asyncio.sleep(rng.uniform(0.0, 0.01))
            outcome = await binding
            if not outcome.bound:
                return str(outcome.status)
            await asyncio.sleep(rng.choice([0.0, 0.05, rng.uniform(0.0, self._world.scenario.setup)]))
            return await self._program(request, lease)
        finally:
            binding.cancel()
            await asyncio.wait([binding])
            if not binding.cancelled() and binding.exception() is None and binding.result().status is BindStatus.BOUND:
                self.session.release(lease)

    async def _program(self, request: Execute, lease: Lease) -> str:
        """Runs user code under a lease that is bound."""
        world, rng, process = self._world, self._rng, self.process
        killed = asyncio.Event()
        self.session.when_lost(lease, killed.set)
        if not self.session.vouches(lease):
            return "lapsed"
        await asyncio.sleep(rng.uniform(0.0, _START_WITHIN_S) / 1.02)
        program = Program(request.run_id, process, request.bucket, request.tokens)
        self._programs[program] = None
        world.checker.started(program)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(request.seconds):
                    await killed.wait()
            return "killed" if killed.is_set() else "done"
        finally:
            await self._reap(program)

    async def _reap(self, program: Program) -> None:
        """Returns when it is dead for certain, whoever cancels this meanwhile."""
        killing = asyncio.create_task(self._kill(program))
        while not killing.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([killing])

    async def _kill(self, program: Program) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, _KILL_WITHIN_S) / 1.02)
        if not self.process.dead:  # otherwise it dies by itself
            del self._programs[program]
            self._world.checker.stopped(program)
