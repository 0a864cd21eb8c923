"""`limiter.v1.LimiterService` over gRPC: checks requests, applies them to the runner, writes what comes back."""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio

from fairbox.errors import FieldError, FieldErrors
from fairbox.net.fields import Fields
from fairbox.net.grpc_errors import abort_exhausted, abort_fields
from fairbox.net.reading import MOST_PARTS, parse_apart
from fairbox.security import TenantRefused, current_identity, still_permitted
from fairbox.telemetry import tracing
from limiter.core import LeaseId, RejectReason
from limiter.core.effects import Effect, Granted, Rejected, Released
from limiter.core.events import Acquire, Cancel, Release
from limiter.core.limits import MAX_TIME_S, MAX_TOKENS
from limiter.server.access import RoleRefused, TokenRevoked, may_release, unary_session
from limiter.server.convert import DEFAULT_BUCKET, lease_message
from limiter.server.leader_term import LeaderTerm
from limiter.server.peer import PeerStream
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc
from limiter.wire import OUTCOMES

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
    _Stream = grpc.aio.ServicerContext[bytes, pb.SessionResponse]

SERVICE_NAME = "limiter.v1.LimiterService"
_HELLO_WITHIN_S = 10.0
"""A stream that says nothing for so long is closed: it holds a slot of the server."""
LONGEST_MESSAGE = 16 << 20
"""Bytes. gRPC copies what it gets on the event loop, up to 1.5 ms a MiB."""
_MOST_PARTS_OF_A_HELLO = 500_000
"""50,000 leases have nine each, and four megabytes; and no client has more than 10,000 requests in a queue."""
_LOOK_EVERY_S = 1.0
"""Least seconds between two look-ups of a stream's token, and only when a frame comes: nothing on the fast path."""
_QUEUE_TIMEOUT_S = 60.0
_MAX_QUEUE_TIMEOUT_S = 3600.0
_UNBOUND_TTL_S = 60.0
"""Long enough for a person to copy a lease from one command into the next."""
_LONGEST_CLIENT_ID = 113
"""With the server's prefix, and that of a tenant, a client id still is an identifier of at most 128 characters."""
_JITTER = 0.2
"""Retry delays differ by this much, so that those who were refused together do not return together."""
_RECOVERING = (("limiter-state", "recovering"),)
"""Initial metadata of an acquire that has to wait for the end of a recovery."""
_STATUS = {
    RejectReason.QUEUE_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    RejectReason.UNKNOWN_BUCKET: grpc.StatusCode.NOT_FOUND,
    RejectReason.CANCELLED: grpc.StatusCode.CANCELLED,
    RejectReason.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
}


class LimiterService(limiter_pb2_grpc.LimiterServiceServicer):
    """The public service."""

    def __init__(self, term: LeaderTerm) -> None:
        self._term = term

    async def Session(  # type: ignore[override]
        self, request_iterator: object, context: _Stream
    ) -> None:
        """The fast path; see the proto."""
        peer = PeerStream(await self._term.take(context), current_identity())
        reader = asyncio.create_task(_read(context, peer))
        try:
            while (frame := await peer.next_frame()) is not None:
                await context.write(frame)
        finally:
            peer.end()
            reader.cancel()
            await asyncio.wait([reader])
        if not reader.cancelled() and (error := reader.exception()) is not None:
            if isinstance(error, FieldErrors):
                await abort_fields(context, error)
            if isinstance(error, RoleRefused):
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            if isinstance(error, TokenRevoked):
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token of this stream is not good any more")
            if isinstance(error, TimeoutError):
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {_HELLO_WITHIN_S:.0f} s")
            raise error

    async def AcquireToken(self, request: pb.AcquireTokenRequest, context: Context) -> pb.AcquireTokenResponse:
        """Waits for one lease."""
        try:
            event, client_id = _acquire_event(request)
        except FieldErrors as errors:
            await abort_fields(context, errors)
        granted = await self._acquire(event, context)
        return pb.AcquireTokenResponse(
            lease=lease_message(granted.lease, granted.bucket, granted.session_id),
            client_id=client_id,
            request_id=granted.request_id,
            waited_s=granted.waited,
            start_by_s=granted.start_by,
        )

    async def ReleaseToken(self, request: pb.ReleaseTokenRequest, context: Context) -> pb.ReleaseTokenResponse:
        """Gives a lease back, or withdraws a request."""
        try:
            event = _release_event(request)
        except FieldErrors as errors:
            await abort_fields(context, errors)
        runner = await self._term.take(context)
        if not may_release(event.session_id, current_identity()):
            return pb.ReleaseTokenResponse()  # as for one that is not known
        released = _released(runner.apply(event))
        if released is None:
            await self._term.take(context)
            raise AssertionError("a release is answered by whoever leads")
        return pb.ReleaseTokenResponse(released=released.released, bound=released.bound)

    async def _acquire(self, event: Acquire, context: Context) -> Granted:
        try:
            event = replace(event, tenant=current_identity().for_tenant(event.tenant))
        except TenantRefused as refused:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refused))
        runner = await self._term.take(context)
        if runner.core.recovering:
            await context.send_initial_metadata(_RECOVERING)
        with tracing.span(
            "limiter.queue", bucket=event.bucket, request_id=event.request_id, tenant=event.tenant
        ) as span:
            ending = await runner.unary.acquire(event)
            span.set_attribute("fairbox.outcome", ending.reason if isinstance(ending, Rejected) else "granted")
        if isinstance(ending, Rejected):
            await _abort(context, ending, event.bucket)
        return ending


async def _read(context: _Stream, peer: PeerStream) -> None:
    """Feeds the stream's frames to `peer` until its end."""
    try:
        async with asyncio.timeout(_HELLO_WITHIN_S):
            frame = await _frame(context, _MOST_PARTS_OF_A_HELLO)
        if frame is not None:
            await peer.open(frame)
            frame = await _frame(context)
        clock = asyncio.get_running_loop().time
        looked = clock()
        while frame is not None:
            if clock() - looked >= _LOOK_EVERY_S:
                looked = clock()
                if not still_permitted():
                    raise TokenRevoked
            await peer.receive(frame)
            frame = await _frame(context)
    finally:
        peer.finish()


async def _frame(context: _Stream, most_parts: int = MOST_PARTS) -> pb.SessionRequest | None:
    """The next one; None: there is none."""
    data = await context.read()
    return await parse_apart(pb.SessionRequest, data, most_parts) if isinstance(data, bytes) else None


def _acquire_event(request: pb.AcquireTokenRequest) -> tuple[Acquire, str]:
    """The event and the client id. FieldErrors when a field is not acceptable."""
    fields = Fields()
    client_id = request.client_id or uuid.uuid4().hex
    fields.identifier("client_id", client_id, longest=_LONGEST_CLIENT_ID)
    event = Acquire(
        session_id=unary_session(client_id, current_identity()),
        request_id=fields.identifier("request_id", request.request_id or uuid.uuid4().hex),
        bucket=request.bucket or DEFAULT_BUCKET,
        tokens=fields.count("tokens", request.tokens, default=1, most=MAX_TOKENS),
        queue_timeout=fields.duration(
            "queue_timeout_s", request.queue_timeout_s, default=_QUEUE_TIMEOUT_S, longest=_MAX_QUEUE_TIMEOUT_S
        ),
        start_by=fields.duration(
            "unbound_ttl_s", request.unbound_ttl_s, default=_UNBOUND_TTL_S, longest=_MAX_QUEUE_TIMEOUT_S
        ),
        hold=fields.duration("hold_s", request.hold_s, default=0.0, longest=MAX_TIME_S),
        tenant=fields.text("tenant", request.tenant, longest=128),
        unary=True,
    )
    fields.check()
    return event, client_id


def _release_event(request: pb.ReleaseTokenRequest) -> Release | Cancel:
    fields = Fields()
    by_lease, by_id = request.HasField("lease"), bool(request.client_id or request.request_id)
    if request.outcome not in OUTCOMES:
        fields.refuse("outcome", f"is {request.outcome}, must be a value of ReleaseOutcome")
    if by_lease and by_id:
        fields.refuse("lease", "is set beside client_id and request_id, must be one way or the other")
    elif by_lease:
        fields.identifier("lease.client_session_id", request.lease.client_session_id)
        for name, value in (("epoch", request.lease.epoch), ("seq", request.lease.seq)):
            if not value:
                fields.refuse(f"lease.{name}", "is 0, must be as in the lease that was granted")
    else:
        fields.identifier("client_id", request.client_id, longest=_LONGEST_CLIENT_ID)
        fields.identifier("request_id", request.request_id)
    fields.check()
    if by_lease:
        lease = LeaseId(request.lease.epoch, request.lease.seq)
        return Release(request.lease.client_session_id, lease, OUTCOMES[request.outcome], unbound_only=True)
    return Cancel(unary_session(request.client_id, current_identity()), request.request_id)


def _released(effects: list[Effect]) -> Released | None:
    """None: the term has ended in that moment."""
    return next((effect for effect in reversed(effects) if isinstance(effect, Released)), None)


async def _abort(context: Context, rejected: Rejected, bucket: str) -> NoReturn:
    """Ends the call with the status of a rejection."""
    if rejected.reason is RejectReason.QUEUE_FULL:
        after = rejected.retry_after * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - not a secret
        await abort_exhausted(context, rejected.message, retry_after_s=after, subject=f"bucket:{bucket}")
    if rejected.reason is RejectReason.INVALID:
        field, _, problem = rejected.message.partition(" ")  # its first word is the field
        await abort_fields(context, FieldErrors([FieldError(field, problem)]))
    await context.abort(_STATUS[rejected.reason], rejected.message)
    raise AssertionError("abort() does not return")
