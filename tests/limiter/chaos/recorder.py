"""A transport that writes down what the limiter told its client, and on which stream."""

from __future__ import annotations

import itertools

from limiter.client.grpc_transport import GrpcTransport
from limiter.client.transport import Connection
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.chaos.journal import Journal


class RecordingTransport:
    """gRPC, and a journal."""

    def __init__(self, target: str, journal: Journal) -> None:
        self._transport = GrpcTransport(target)
        self._journal = journal
        self._streams = itertools.count(1)

    @property
    def target(self) -> str:
        """Address of the limiter."""
        return self._transport.target

    async def connect(self) -> Connection:
        """Opens a stream."""
        return _Recorded(await self._transport.connect(), self._journal, next(self._streams))

    async def close(self) -> None:
        """Closes the channel."""
        await self._transport.close()


class _Recorded:
    """One stream."""

    def __init__(self, connection: Connection, journal: Journal, stream: int) -> None:
        self._connection = connection
        self._journal = journal
        self._stream = stream
        self._listed: list[str] = []
        """Requests of the hello: the limiter has them in its queue when it says welcome."""

    async def send(self, frame: pb.SessionRequest) -> None:
        self._listed += [acquire.request_id for acquire in frame.hello.queued]
        await self._connection.send(frame)

    async def receive(self) -> pb.SessionResponse:
        frame = await self._connection.receive()
        note, stream = self._journal.note, self._stream
        if frame.HasField("welcome"):
            note("welcome", stream=stream, epoch=frame.welcome.epoch, recovering=frame.welcome.recovering)
            for unknown in frame.welcome.unknown:
                note("unknown", epoch=unknown.epoch, seq=unknown.seq)
            for request in self._listed:
                note("placed", stream=stream, request=request)
        for queued in frame.queued:
            ticket = queued.ticket
            note("queued", stream=stream, request=queued.request_id, epoch=ticket.epoch, seq=ticket.seq)
        for grant in frame.grants:
            note("granted", stream=stream, request=grant.request_id, epoch=grant.lease.epoch, seq=grant.lease.seq)
        return frame

    async def finish(self) -> None:
        await self._connection.finish()

    async def close(self) -> None:
        await self._connection.close()
