"""Carries the limiter's sessions over the simulated network, as grpc_transport.py and service.py do over gRPC."""

from __future__ import annotations

import asyncio

from fairbox.errors import FieldErrors
from limiter.client.transport import ConnectionLost
from limiter.server.core_runner import CoreRunner
from limiter.server.peer import PeerStream
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.sim.connection import Broken, End, dial
from tests.limiter.sim.loop import Process
from tests.limiter.sim.network import Network

_HELLO_WITHIN_S = 10.0
"""As in limiter.server.service."""


class SimTransport:
    """A `limiter.client.transport.Transport` of one process."""

    def __init__(self, network: Network, process: Process, target: str) -> None:
        self.target = target
        self._network = network
        self._process = process

    async def connect(self) -> SimConnection:
        """At once; an unreachable limiter shows at the first frame."""
        await asyncio.sleep(0)
        return SimConnection(dial(self._network, self._process, self.target))

    async def close(self) -> None:
        """Nothing is held."""


class SimConnection:
    """The client's end of a session."""

    def __init__(self, end: End) -> None:
        self._end = end

    async def send(self, frame: pb.SessionRequest) -> None:
        try:
            await self._end.send(frame)
        except Broken as error:
            raise ConnectionLost(str(error)) from None

    async def receive(self) -> pb.SessionResponse:
        try:
            frame = await self._end.receive()
        except Broken as error:
            raise ConnectionLost(str(error)) from None
        assert isinstance(frame, pb.SessionResponse)
        return frame

    async def finish(self) -> None:
        self._end.finish()

    async def close(self) -> None:
        self._end.abort()


async def serve_session(end: End, runner: CoreRunner, *, forged: bool = False) -> None:
    """The limiter's end of a session. Frames that it does not accept are errors here unless they are `forged`:
    production code has made them."""
    if runner.closed:
        end.abort()
        return
    peer = PeerStream(runner)
    reader = asyncio.create_task(_read(end, peer))
    try:
        while (frame := await peer.next_frame()) is not None:
            await end.send(frame)
        end.finish()
    except Broken:
        pass
    finally:
        peer.end()
        reader.cancel()
        await asyncio.wait([reader])
        end.fail()
    error = None if reader.cancelled() else reader.exception()
    if error is not None and not (isinstance(error, FieldErrors) and forged):
        raise error


async def _read(end: End, peer: PeerStream) -> None:
    try:
        async with asyncio.timeout(_HELLO_WITHIN_S):
            frame = await end.receive()
        assert isinstance(frame, pb.SessionRequest)
        await peer.open(frame)
        while True:
            frame = await end.receive()
            assert isinstance(frame, pb.SessionRequest)
            await peer.receive(frame)
    except (Broken, TimeoutError):
        pass
    finally:
        peer.finish()
