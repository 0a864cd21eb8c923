"""A client of bad will as a simulated process: claims places, leases and sessions that are not its own, shows again
what it has used, and calls without an end and without a name."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from fairbox.v1 import common_pb2
from limiter.core.events import Acquire
from limiter.v1 import limiter_pb2 as pb
from limiter.wire import session_of
from tests.limiter.sim.client_node import ClientNode
from tests.limiter.sim.connection import Broken, dial
from tests.limiter.sim.scenario import HELD
from tests.limiter.sim.unary import FORGER
from tests.limiter.sim.world import LIMITER, World

_EVERY_S = 0.5
"""Mean time between its attempts."""
_LISTENS_S = 1.0
_AT_ONCE = 5
"""Anonymous calls with each attempt."""
_KEEPS = 20


class ForgerNode:
    """One forger. What it gains by this is for the watch over each limiter to see."""

    def __init__(self, world: World, name: str) -> None:
        self.process = world.process(name)
        self._world = world
        self._name = f"{name}.{world.life()}"
        self._secret = f"{self._name:*>20}"
        self._session_id = session_of(self._secret)
        world.checker.forgers[self._session_id] = self._name
        self._rng = world.rng(f"forger {self._name}")
        self._used: list[pb.HeldLease] = []
        """Leases that it had and gave back, with their true proofs."""
        self._epoch = 1
        self._serial = 0
        self._leaving = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def idle(self) -> bool:
        """True if it has given up."""
        return bool(self._tasks) and all(task.done() for task in self._tasks)

    async def run(self) -> None:
        self._tasks = [asyncio.create_task(self._forge()), asyncio.create_task(self._flood())]
        try:
            await self._leaving.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            for task in self._tasks:
                await asyncio.wait([task])

    def leave(self) -> None:
        self._leaving.set()

    def died(self) -> None:
        """Nothing is left of it."""

    async def _forge(self) -> None:
        while self._world.busy:
            await asyncio.sleep(self._rng.expovariate(1 / _EVERY_S))
            await self._within(self._session(), _LISTENS_S)

    async def _flood(self) -> None:
        """Calls that nobody will ever end, but for their own time."""
        while self._world.busy:
            await asyncio.sleep(self._rng.expovariate(1 / _EVERY_S))
            calls = [self._within(self._call(), _LISTENS_S) for _ in range(_AT_ONCE)]
            await asyncio.gather(*calls)

    async def _within(self, attempt: Coroutine[Any, Any, None], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await attempt
        except (Broken, TimeoutError):
            pass

    async def _call(self) -> None:
        end = dial(self._world.network, self.process, LIMITER)
        try:
            name = f"unary:{self._request()}"
            await end.send(Acquire(name, "1", queue_timeout=3.0, start_by=3.0, unary=True))
            await end.receive()
            await asyncio.sleep(_LISTENS_S)
        finally:
            end.abort()

    async def _session(self) -> None:
        world, rng = self._world, self._rng
        end = dial(world.network, self.process, LIMITER)
        try:
            await end.send(pb.SessionRequest(hello=self._hello()))
            late = pb.Acquire(request_id=self._request(), ticket=self._ticket(), queue_timeout_s=2)
            hold = pb.Acquire(request_id=self._request(), bucket=HELD, hold_s=10, queue_timeout_s=2)
            asks = [late] if rng.random() < 0.5 or not self._holds else [hold]
            while True:
                frame = await end.receive()
                self._epoch = max(self._epoch, frame.welcome.epoch)
                if frame.HasField("welcome"):
                    await end.send(pb.SessionRequest(acquires=asks))
                for grant in frame.grants:
                    await end.send(pb.SessionRequest(releases=[pb.Release(lease=grant.lease)]))
                    if grant.hold_proof:
                        used = pb.HeldLease(lease=grant.lease, tokens=1, hold_s=10, proof=grant.hold_proof)
                        self._used = [*self._used[-_KEEPS:], used]
        finally:
            end.abort()

    @property
    def _holds(self) -> bool:
        return any(bucket.max_hold for bucket in self._world.scenario.buckets)

    def _request(self) -> str:
        self._serial += 1
        return f"{self._name}.{self._serial}"

    def _hello(self) -> pb.Hello:
        """Its own session, or somebody else's."""
        rng = self._rng
        hello = pb.Hello(session_id=self._session_id, secret=self._secret, name=FORGER, kind=pb.SESSION_KIND_CLIENT)
        victims = [each for each in self._world.nodes.values() if isinstance(each, ClientNode)]
        if victims and rng.random() < 0.3:
            hello.session_id = rng.choice(victims).client.session_id
            return hello
        hello.queued.add(request_id=self._request(), queue_timeout_s=2, ticket=self._ticket())
        for seq in range(1, rng.choice([1, 4])):
            lease = common_pb2.Lease(bucket=HELD, epoch=self._epoch - 1, seq=seq, client_session_id=self._session_id)
            hello.held.add(lease=lease, tokens=rng.choice([1, 2, 1000]), hold_s=10, proof=b"0" * 16)
        hello.held.extend(self._used)
        return hello

    def _ticket(self) -> pb.Ticket:
        """One that was never given, or was given to somebody else."""
        rng = self._rng
        waiting = [
            wanted.ticket
            for node in self._world.nodes.values()
            if isinstance(node, ClientNode)
            for wanted in node.client._runner.machine.waiting.values()
            if wanted.ticket is not None and wanted.bucket == "code" and not wanted.tenant
        ]
        if waiting and rng.random() < 0.7:
            epoch, seq, proof = rng.choice(waiting)
            return pb.Ticket(epoch=epoch, seq=seq, proof=proof)
        return pb.Ticket(epoch=rng.choice([1, max(1, self._epoch - 1)]), seq=rng.randint(1, 5), proof=b"0" * 16)
