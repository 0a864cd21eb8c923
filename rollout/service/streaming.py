"""The stream of trajectories that have ended, from all services that a client was given.

Invariants: it gives each trajectory once, over reconnections too; at most one is read ahead of each service; it goes on
by itself when a service was started again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import grpc.aio
from cachetools import LRUCache

from rollout.loop.results import TrajectoryResult
from rollout.service.messages import trajectory_result
from rollout.service.replica import CALL_S, RolloutServiceError, ServiceReplica
from rollout.v1 import rollout_pb2 as pb

_ACKNOWLEDGED = 100_000
"""Ids whose acknowledgement may have been lost on the way: if they come again, they are acknowledged again."""


@dataclass(frozen=True, slots=True)
class StreamedTrajectory:
    """A trajectory that has ended."""

    id: str
    """As it was submitted."""
    result: TrajectoryResult
    """As the loop that played it had it: `RolloutBatch.from_results` takes it."""


class TrajectoryStream:
    """`async with rollouts.stream() as stream: async for trajectory in stream: ...`, with
    `await stream.acknowledge(trajectory.id)` when the trainer has it for good: it comes again on the next stream else.

    Raises as `RolloutClient` does, and RolloutServiceError where another stream of the tenant took its place.
    """

    def __init__(self, replicas: Sequence[ServiceReplica], opening: pb.StreamOpening) -> None:
        self._streams = [_ReplicaStream(replica, opening) for replica in replicas]
        """The one that gave something last is the last."""
        self._given: dict[str, list[_ReplicaStream]] = {}
        """Given and not acknowledged -> whence: from several, where replicas came or went."""
        self._acknowledged: LRUCache[str, bool] = LRUCache(_ACKNOWLEDGED)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(each.close(drained=error is None) for each in self._streams))

    def __aiter__(self) -> AsyncIterator[StreamedTrajectory]:
        return self

    async def __anext__(self) -> StreamedTrajectory:
        """The next one that has ended, as soon as there is one."""
        while True:
            ahead = {each: each.ahead() for each in self._streams}
            await asyncio.wait(ahead.values(), return_when=asyncio.FIRST_COMPLETED)
            stream = next(each for each, task in ahead.items() if task.done())
            self._streams.remove(stream)
            self._streams.append(stream)
            message = stream.take()
            if message.id in self._acknowledged:
                await stream.acknowledge([message.id])  # the acknowledgement was lost
                continue
            sources = self._given.setdefault(message.id, [])
            if stream not in sources:
                sources.append(stream)
                if len(sources) == 1:
                    return StreamedTrajectory(message.id, trajectory_result(message))

    async def acknowledge(self, *ids: str) -> None:
        """Tells the service that these need not be kept. What is lost on the way is told again when they come again."""
        of_each: dict[_ReplicaStream, list[str]] = {}
        for each in ids:
            self._acknowledged[each] = True
            for stream in self._given.pop(each, self._streams):
                of_each.setdefault(stream, []).append(each)
        for stream, some in of_each.items():
            await stream.acknowledge(some)


class _ReplicaStream:
    """The stream of one service, over its reconnections."""

    def __init__(self, replica: ServiceReplica, opening: pb.StreamOpening) -> None:
        self._replica = replica
        self._opening = opening
        self._patience = replica.patience()
        self._call: grpc.aio.StreamStreamCall[Any, Any] | None = None
        self._opened = False
        """True behind `open`, which must be first; acknowledgements may come then."""
        self._ahead: asyncio.Task[pb.Trajectory] | None = None
        self._submitting: asyncio.Task[None] | None = None
        """The task that submits again what a service that has begun anew may have lost."""
        self._closing = False

    def ahead(self) -> asyncio.Task[pb.Trajectory]:
        """The task that reads the next one."""
        if self._ahead is None:
            self._ahead = asyncio.create_task(self._next(), name=f"trajectories of {self._replica.target}")
        return self._ahead

    def take(self) -> pb.Trajectory:
        """Its result, when it has ended."""
        assert self._ahead is not None
        task, self._ahead = self._ahead, None
        return task.result()

    async def acknowledge(self, ids: Sequence[str]) -> None:
        if self._call is None or not self._opened:
            return
        acknowledgement = pb.Acknowledgement(ids=ids)
        try:
            await self._call.write(pb.StreamTrajectoriesRequest(acknowledge=acknowledgement))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the stream has ended, as whoever asks for the next one is told

    async def close(self, *, drained: bool) -> None:
        """`drained`: acknowledgements that were sent are read to the last."""
        self._closing = True
        try:
            if drained and self._call is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CALL_S):
                        await self._drain(self._call)
        finally:
            self._leave()
            if self._ahead is not None:
                self._ahead.cancel()
                await asyncio.wait([self._ahead])
                if not self._ahead.cancelled():
                    self._ahead.exception()  # which nobody asks for any more

    async def _next(self) -> pb.Trajectory:
        while True:
            try:
                if self._call is None:
                    await self._open()
                trajectory = await self._read()
            except grpc.aio.AioRpcError as error:
                self._leave()
                if self._closing:
                    raise
                # Again is safe: the service sends everything that is not acknowledged, and what was given is known.
                await self._patience.after(error, room=True)
                continue
            self._replica.forget([trajectory.id])
            return trajectory

    async def _open(self) -> None:
        call = self._call = self._replica.stub.StreamTrajectories()
        await call.write(pb.StreamTrajectoriesRequest(open=self._opening))
        if ("rollout-stream", "open") in tuple(await call.initial_metadata() or ()):
            self._opened = True
            work = self._replica.submit_again(self._patience.answered)
            self._submitting = asyncio.create_task(work, name=f"what {self._replica.target} may have lost")

    async def _read(self) -> pb.Trajectory:
        """Raises what submitting again raises: what came meanwhile makes room, so that one does not wait for the
        other."""
        assert self._call is not None
        reading = asyncio.ensure_future(self._call.read())
        try:
            if self._submitting is not None:
                await asyncio.wait([reading, self._submitting], return_when=asyncio.FIRST_COMPLETED)
                if self._submitting.done():
                    submitting, self._submitting = self._submitting, None
                    submitting.result()
            response = await reading
        finally:
            _let_go(reading)
        if response is grpc.aio.EOF:
            raise RolloutServiceError(f"the stream has ended: {await self._call.details()}")
        return cast("pb.StreamTrajectoriesResponse", response).trajectory

    async def _drain(self, call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.done_writing()
            if self._ahead is not None:
                await asyncio.wait([self._ahead])
            while await call.read() is not grpc.aio.EOF:
                pass

    def _leave(self) -> None:
        call, self._call, self._opened = self._call, None, False
        submitting, self._submitting = self._submitting, None
        if call is not None:
            call.cancel()
        if submitting is not None:
            _let_go(submitting)


def _let_go(task: asyncio.Future[Any]) -> None:
    """Ends it, if it has not ended; nobody asks for its result any more."""
    if not task.cancel() and not task.cancelled():
        task.exception()
