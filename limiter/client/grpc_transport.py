"""Sessions over gRPC: one channel, one stream at a time, to whichever limiter leads.

A stream that this side had to give up may lie on a connection that is dead without gRPC knowing: it would put the next
stream on it too, until its keepalive has noticed. So the next stream gets a new channel then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio

from fairbox.errors import ConfigError, FieldError, FieldErrors
from fairbox.net.channels import open_channel
from fairbox.security import ClientSecurity, client_security
from limiter.client.transport import ConnectionLost
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterServiceAsyncStub as Stub

    Call = grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]

# Where to look for the limiter that leads, as a pure state machine: what became of a connection goes in.
#
# Several addresses are tried in turn. An address at which it worked is tried once more first: its process may have been
# started again. Within one round nothing is waited for; after it, whoever runs this waits, and the waits grow.


MAX_TARGETS = 16


class Targets:
    """Ask `current`, and say with `lost()` what became of it."""

    def __init__(self, targets: str) -> None:
        """`targets`: HOST:PORT, or up to 16 of them with commas between. FieldErrors for an empty one, and for more."""
        self._listed = tuple(each.strip() for each in targets.split(","))
        if not all(self._listed):
            raise FieldErrors([FieldError("target", f"is {targets!r}, must be HOST:PORT, or several separated by ','")])
        if len(self._listed) > MAX_TARGETS:
            raise FieldErrors(
                [FieldError("target", f"has {len(self._listed)} addresses, must have at most {MAX_TARGETS}")]
            )
        self._next = 1 % len(self._listed)
        self._tried = 0
        """Addresses of the list that have failed since the last wait."""
        self.current = self._listed[0]
        """Address to connect to next."""

    def each(self, check: Callable[[str], None]) -> None:
        """Calls `check` with every address of the list."""
        for target in self._listed:
            check(target)

    def lost(self, *, worked: bool) -> bool:
        """The connection to `current` has ended. `worked`: it had been welcomed there. Returns whether the next one is
        to be tried at once."""
        if worked:
            self._tried = 0
            return False
        self.current = self._listed[self._next]
        self._next = (self._next + 1) % len(self._listed)
        self._tried += 1
        if self._tried < len(self._listed):
            return True
        self._tried = 0
        return False


class GrpcTransport:
    """`target` is HOST:PORT, or several with commas between, of limiters of which one leads. It opens its channel at
    the first `connect()`, inside the loop that uses it."""

    def __init__(self, target: str, security: ClientSecurity | None = None) -> None:
        """`security` None: that of the environment. ConfigError where a token would go to a target in the clear."""
        self.target = target
        self._targets = Targets(target)
        self._security = client_security() if security is None else security
        self._targets.each(self._security.check_target)
        self._channel: grpc.aio.Channel | None = None
        self._address = ""
        self._connection: GrpcConnection | None = None

    async def connect(self) -> GrpcConnection:
        """Opens a stream; an unreachable server shows at the first frame."""
        last, self._connection = self._connection, None
        if last is not None:
            last.lost()
        if self._address != self._targets.current or (last is not None and last.given_up):
            await self.close()
        if self._channel is None:
            self._address = self._targets.current
            try:
                self._channel = open_channel(self._address, security=self._security)
            except ConfigError as error:  # files that can't be used now
                raise ConnectionLost(str(error)) from None
        stub = cast("Stub", limiter_pb2_grpc.LimiterServiceStub(self._channel))
        self._connection = GrpcConnection(stub.Session(), self._targets)
        return self._connection

    async def close(self) -> None:
        """Closes the channel."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


class GrpcConnection:
    """One stream of the channel."""

    def __init__(self, call: Call, targets: Targets) -> None:
        self._call = call
        self._targets = targets
        self._worked = False
        self._go_on: bool | None = None
        """Once it is lost: whether another address is to be tried at once."""
        self.given_up = False
        """True if this side has ended it, not the limiter or gRPC."""

    async def send(self, frame: pb.SessionRequest) -> None:
        """Writes one frame."""
        try:
            await self._call.write(frame)
        except asyncio.CancelledError:
            self._raise_if_cancelled()
            raise ConnectionLost("the stream was closed by this side") from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            raise await self._loss(error) from None

    async def receive(self) -> pb.SessionResponse:
        """Reads one frame."""
        try:
            frame = await self._call.read()
        except asyncio.CancelledError:
            self._raise_if_cancelled()
            raise ConnectionLost("the stream was closed by this side") from None
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            raise await self._loss(error) from None
        if isinstance(frame, pb.SessionResponse):
            self._worked = True
            return frame
        raise await self._loss(None)

    async def finish(self) -> None:
        """Half-closes the stream."""
        if not self._call.done():
            await self._call.done_writing()

    async def close(self) -> None:
        """Cancels the stream if it is still open."""
        self.given_up = self._call.cancel() or self.given_up

    def lost(self) -> bool:
        """It has ended. Whether another address is to be tried at once. Idempotent."""
        if self._go_on is None:
            self._go_on = self._targets.lost(worked=self._worked)
        return self._go_on

    def _raise_if_cancelled(self) -> None:
        """grpc.aio raises CancelledError too when `close()` has cancelled the call and nobody the task that uses it."""
        task = asyncio.current_task()
        if not self._call.cancelled() or task is None or task.cancelling():
            raise asyncio.CancelledError

    async def _loss(self, error: Exception | None) -> ConnectionLost:
        text = "the stream has ended"
        if isinstance(error, grpc.aio.AioRpcError):
            text = f"{error.code().name}: {error.details()}"
        elif self._call.done():
            text = f"{(await self._call.code()).name}: {await self._call.details()}"
        return ConnectionLost(text, go_on=self.lost())
