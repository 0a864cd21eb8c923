"""The network as a session needs it: a stream of frames each way. Implemented over gRPC and by the simulation."""

from __future__ import annotations

from typing import Protocol

from limiter.v1 import limiter_pb2 as pb


class ConnectionLost(Exception):
    """The stream has ended or could not be opened; the text says why."""

    def __init__(self, why: str, *, go_on: bool = False) -> None:
        """`go_on`: there is another place to connect to, without waiting."""
        super().__init__(why)
        self.go_on = go_on


class Connection(Protocol):
    """One stream. Frames arrive in order or not at all."""

    async def send(self, frame: pb.SessionRequest) -> None:
        """Sends a frame; returns when the next one may be given. Raises ConnectionLost."""
        ...

    async def receive(self) -> pb.SessionResponse:
        """The next frame. Raises ConnectionLost at the end of the stream."""
        ...

    async def finish(self) -> None:
        """Says that no more frames will be sent."""
        ...

    async def close(self) -> None:
        """Ends the stream at once. Idempotent."""
        ...


class Transport(Protocol):
    """Opens streams to the limiter that leads."""

    @property
    def target(self) -> str:
        """The limiter's place, for messages to people."""
        ...

    async def connect(self) -> Connection:
        """Opens a stream. Raises ConnectionLost; may also succeed and fail at the first frame."""
        ...

    async def close(self) -> None:
        """Gives everything back. Idempotent."""
        ...
