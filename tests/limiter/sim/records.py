"""The record of who leads, kept by a process of its own that limiters reach over the simulated network."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from limiter.leadership.election import Conflict, Record, StoreUnavailable
from tests.limiter.sim.connection import Broken, End, dial
from tests.limiter.sim.loop import Process
from tests.limiter.sim.network import Network
from tests.limiter.sim.world import STORE, World


@dataclass(frozen=True, slots=True)
class _Call:
    """A read, or a write of `record`."""

    record: Record | None = None
    expected: str | None = None


class StoreNode:
    """Keeps one record; each call happens at one instant."""

    def __init__(self, world: World) -> None:
        self.process = world.process(STORE)
        self._world = world
        self._record: Record | None = None
        self._writes = 0
        self._leaving = asyncio.Event()
        self._calls: dict[asyncio.Task[None], None] = {}

    async def run(self) -> None:
        self._world.network.listen(self.process, self._accept)
        await self._leaving.wait()
        for call in list(self._calls):
            call.cancel()
            await asyncio.wait([call])

    def leave(self) -> None:
        self._leaving.set()

    def died(self) -> None:
        """It is never killed: the record would have to be on a disk."""

    def _accept(self, end: End) -> None:
        task = asyncio.create_task(self._call(end))
        self._calls[task] = None
        task.add_done_callback(self._calls.pop)

    async def _call(self, end: End) -> None:
        try:
            call = await end.receive()
            assert isinstance(call, _Call)
            await end.send(self._apply(call))
            end.finish()
            end.fail()
        except Broken:
            pass
        finally:
            end.abort()

    def _apply(self, call: _Call) -> Record | str:
        """The record as it is now; "none", or "conflict"."""
        if call.record is None:
            return self._record or "none"
        if call.expected != (self._record.version if self._record is not None else None):
            return "conflict"
        self._writes += 1
        self._record = replace(call.record, version=f"v{self._writes}")
        return self._record


class SimRecords:
    """A `limiter.leadership.election.RecordStore` of one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    async def read(self) -> Record | None:
        answer = await self._call(_Call())
        return answer if isinstance(answer, Record) else None

    async def write(self, record: Record, expected: str | None) -> Record:
        answer = await self._call(_Call(record, expected))
        if isinstance(answer, Record):
            return answer
        raise Conflict("the record is another one")

    async def close(self) -> None:
        """Nothing is open between the calls."""

    async def _call(self, call: _Call) -> object:
        end = dial(self._network, self._process, STORE)
        try:
            await end.send(call)
            answer: object = await end.receive()
            return answer
        except Broken as error:
            raise StoreUnavailable(str(error)) from None
        finally:
            end.abort()
