"""The limiter inside one program: the same core, sessions and clients, without a network.

For one machine, and for tests of whatever uses a limiter. The limit holds within this event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType

from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import FieldErrors
from limiter.client import ExecutorSession, LimiterClient
from limiter.client.transport import ConnectionLost, Transport
from limiter.core import BucketLimits, LimiterCore, LimiterStatistics, Timing
from limiter.server.hub import Hub
from limiter.server.peer import PeerStream
from limiter.v1 import limiter_pb2 as pb

__all__ = ["InProcessLimiter"]

_TARGET = "in process"


class InProcessLimiter:
    """`async with InProcessLimiter({"code": 4}) as limiter, limiter.client() as client: ...`

    `buckets` maps names to limits; a number is `max_in_flight` with everything else at its default.
    """

    def __init__(
        self,
        buckets: Mapping[str, int | BucketLimits],
        *,
        timing: Timing | None = None,
        clock: Clock | None = None,
        epoch: int = 1,
    ) -> None:
        self._limits = [
            BucketLimits(name, max_in_flight=limits) if isinstance(limits, int) else limits
            for name, limits in buckets.items()
        ]
        self._timing = timing
        self._clock = clock or MonotonicClock()
        self._epoch = epoch

    async def __aenter__(self) -> InProcessLimiter:
        core = LimiterCore(self._epoch, self._limits, now=self._clock.now(), timing=self._timing)
        self._hub = Hub(core, self._clock)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub.close()

    def transport(self) -> Transport:
        """What sessions of this limiter travel over."""
        return _Transport(self._hub)

    def client(self, *, name: str = "") -> LimiterClient:
        """A client, as over gRPC."""
        return LimiterClient(_TARGET, name=name, clock=self._clock, transport=self.transport())

    def executor(self, *, executor_id: str = "") -> ExecutorSession:
        """An executor's session, as over gRPC."""
        return ExecutorSession(_TARGET, executor_id=executor_id, clock=self._clock, transport=self.transport())

    def statistics(self) -> LimiterStatistics:
        """The state of every bucket now."""
        return self._hub.core.statistics(self._clock.now())


class _Transport:
    """Opens streams straight into a hub."""

    target = _TARGET

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def connect(self) -> _Connection:
        if self._hub.closed:
            raise ConnectionLost("the limiter was closed")
        return _Connection(PeerStream(self._hub))

    async def close(self) -> None:
        """Nothing is held."""


class _Connection:
    """Both ends of a stream."""

    def __init__(self, peer: PeerStream) -> None:
        self._peer = peer

    async def send(self, frame: pb.SessionRequest) -> None:
        try:
            self._peer.receive(frame)
        except FieldErrors as errors:
            self._peer.end()
            raise ConnectionLost(str(errors)) from None
        await asyncio.sleep(0)  # as a network would, so that frames coalesce and others get their turn

    async def receive(self) -> pb.SessionResponse:
        frame = await self._peer.next_frame()
        if frame is None:
            self._peer.end()
            raise ConnectionLost("the stream has ended")
        return frame

    async def finish(self) -> None:
        self._peer.finish()

    async def close(self) -> None:
        self._peer.end()
