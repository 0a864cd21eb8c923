"""Leases over unary calls: for programs that can't keep a stream open. Slower than `LimiterClient`, same queue.

The queue timeout travels in the request, and the server answers it. Whatever ends a call on this side instead, a
deadline, a cancellation, a lost connection, is followed by a release by (client_id, request_id, attempt), because the
grant may be on its way. Safe to repeat: a release is idempotent, and names one attempt.

An acquire that could not be asked for, because a limiter is not there or does not lead, is asked of the next one, once
around. Safe to repeat: the request_id makes a second one of the same limiter join the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio

from fairbox.channels import open_channel
from fairbox.grpc_errors import retry_after
from fairbox.security import ClientSecurity, client_security
from limiter.client.client import check_wait
from limiter.client.errors import (
    LeaseRefused,
    LimiterError,
    LimiterUnavailable,
    QueueFull,
    QueueTimeout,
    UnknownBucket,
)
from limiter.client.grpc_transport import Targets
from limiter.client.lease import Lease
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc

__all__ = ["UnaryLimiterClient"]

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterServiceAsyncStub as Stub

_BACKSTOP_S = 10.0
"""The server answers the queue timeout; the call's own deadline is this much later."""
_RELEASE_WITHIN_S = 5.0
_MAX_QUEUE_TIMEOUT_S = 3600.0


class UnaryLimiterClient:
    """`async with UnaryLimiterClient(target) as limiter: async with limiter.lease() as lease: ...`

    `target` is HOST:PORT, or several with commas between, of limiters of which one leads. `security`: TLS and the
    token; None: those of the environment (`fairbox.security.client_security`).
    """

    def __init__(self, target: str, *, client_id: str = "", security: ClientSecurity | None = None) -> None:
        self.target = target
        self._security = client_security() if security is None else security
        self.client_id = client_id or uuid.uuid4().hex
        self._address = Targets(target).current
        """Where a limiter has answered last."""
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> UnaryLimiterClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    @contextlib.asynccontextmanager
    async def lease(
        self,
        bucket: str = "code",
        tokens: int = 1,
        *,
        queue_timeout: float = 60.0,
        unbound_ttl: float = 60.0,
        hold: float = 0.0,
    ) -> AsyncIterator[Lease]:
        """As `LimiterClient.lease()`; a lease that no executor binds within `unbound_ttl` seconds ends, unless it has a
        `hold` time."""
        check_wait(bucket, tokens, min(queue_timeout, _MAX_QUEUE_TIMEOUT_S), hold)
        request_id = str(next(self._numbers))
        request = pb.AcquireTokenRequest(
            bucket=bucket,
            tokens=tokens,
            client_id=self.client_id,
            request_id=request_id,
            queue_timeout_s=queue_timeout,
            unbound_ttl_s=unbound_ttl,
            hold_s=hold,
        )
        targets = Targets(self.target, self._address)
        try:
            yield Lease.of((await self._acquire(targets, request, queue_timeout + _BACKSTOP_S)).lease)
        finally:
            await asyncio.shield(self._release(targets.current, request_id))

    async def _acquire(
        self, targets: Targets, request: pb.AcquireTokenRequest, timeout: float
    ) -> pb.AcquireTokenResponse:
        """Asks the limiter at `targets.current`, and those that are next. LimiterError when the last one refuses."""
        while True:
            try:
                response = await self._stub(targets.current).AcquireToken(request, timeout=timeout)
            except grpc.aio.AioRpcError as error:
                unavailable = error.code() is grpc.StatusCode.UNAVAILABLE
                if not unavailable or not targets.lost(worked=False):
                    raise _error(error, self.target) from None
                continue
            self._address = targets.current
            return response

    def _stub(self, address: str) -> Stub:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, security=self._security)
        return cast("Stub", limiter_pb2_grpc.LimiterServiceStub(channel))

    async def _release(self, address: str, request_id: str) -> None:
        """Gives the lease back or withdraws the request, whichever it is by now; a bound lease is left alone."""
        with contextlib.suppress(grpc.aio.AioRpcError):  # the lease then ends by its unbound_ttl, or its hold time
            await self._stub(address).ReleaseToken(
                pb.ReleaseTokenRequest(client_id=self.client_id, request_id=request_id), timeout=_RELEASE_WITHIN_S
            )


def _error(error: grpc.aio.AioRpcError, target: str) -> LimiterError:
    details = error.details() or error.code().name
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return QueueFull(details, retry_after(error) or 0.0)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return QueueTimeout(details)
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return UnknownBucket(details)
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return LeaseRefused(details)
    return LimiterUnavailable(f"limiter {target}: {error.code().name}: {details}")
