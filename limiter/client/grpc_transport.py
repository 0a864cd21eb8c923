"""Sessions over gRPC: one channel, one stream at a time.

A stream that this side had to give up may lie on a connection that is dead without gRPC knowing: it would put the next
stream on it too, until its keepalive has noticed. So the next stream gets a new channel then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio

from fairbox.channels import open_channel
from limiter.client.transport import ConnectionLost
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc

__all__ = ["GrpcTransport"]

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterServiceAsyncStub as Stub

    Call = grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]


class GrpcTransport:
    """Opens its channel at the first `connect()`, inside the loop that uses it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._channel: grpc.aio.Channel | None = None
        self._connection: GrpcConnection | None = None

    async def connect(self) -> GrpcConnection:
        """Opens a stream; an unreachable server shows at the first frame."""
        if self._connection is not None and self._connection.given_up:
            await self.close()
        if self._channel is None:
            self._channel = open_channel(self.target)
        stub = cast("Stub", limiter_pb2_grpc.LimiterServiceStub(self._channel))
        self._connection = GrpcConnection(stub.Session())
        return self._connection

    async def close(self) -> None:
        """Closes the channel."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


class GrpcConnection:
    """One stream of the channel."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.given_up = False
        """Whether this side has ended it, and not the limiter or gRPC."""

    async def send(self, frame: pb.SessionRequest) -> None:
        """Writes one frame."""
        try:
            await self._call.write(frame)
        except asyncio.CancelledError:
            self._raise_if_cancelled()
            raise ConnectionLost("the stream was closed by this side") from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            raise ConnectionLost(await self._reason(error)) from None

    async def receive(self) -> pb.SessionResponse:
        """Reads one frame."""
        try:
            frame = await self._call.read()
        except asyncio.CancelledError:
            self._raise_if_cancelled()
            raise ConnectionLost("the stream was closed by this side") from None
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            raise ConnectionLost(await self._reason(error)) from None
        if isinstance(frame, pb.SessionResponse):
            return frame
        raise ConnectionLost(await self._reason(None))

    async def finish(self) -> None:
        """Half-closes the stream."""
        if not self._call.done():
            await self._call.done_writing()

    async def close(self) -> None:
        """Cancels the stream if it is still open."""
        self.given_up = self._call.cancel() or self.given_up

    def _raise_if_cancelled(self) -> None:
        """grpc.aio raises CancelledError too when `close()` has cancelled the call and nobody the task that uses it."""
        task = asyncio.current_task()
        if not self._call.cancelled() or task is None or task.cancelling():
            raise asyncio.CancelledError

    async def _reason(self, error: Exception | None) -> str:
        if isinstance(error, grpc.aio.AioRpcError):
            return f"{error.code().name}: {error.details()}"
        if self._call.done():
            return f"{(await self._call.code()).name}: {await self._call.details()}"
        return "the stream has ended"
