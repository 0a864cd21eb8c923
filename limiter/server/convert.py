"""Between the messages of limiter.v1 and the events, reasons and facts of the core."""

from __future__ import annotations

import asyncio

from fairbox.net.fields import IDENTIFIER, Fields
from fairbox.security import ANYONE, Identity, TenantRefused
from fairbox.v1 import common_pb2
from limiter.core import (
    SLICE,
    BucketLimits,
    BucketOrder,
    BucketStatistics,
    LeaseId,
    RejectReason,
    SessionKind,
    Ticket,
)
from limiter.core.effects import Rejected
from limiter.core.events import Acquire, HeldLease, Hello
from limiter.core.lease import LeaseEntry, Session
from limiter.core.limits import MAX_TIME_S, MAX_TOKENS
from limiter.server.claims import Claims
from limiter.v1 import limiter_pb2 as pb
from limiter.wire import KIND_VALUES, KINDS, ORDER_VALUES, ORDERS, STATE_VALUES, session_of

_DEFAULTS = BucketLimits("")


def bucket_limits(message: pb.BucketConfig, path: str) -> BucketLimits:
    """The limits with defaults filled in. FieldErrors with everything that is not acceptable, named below `path`."""
    fields = Fields()
    if message.order not in ORDERS:
        fields.refuse(f"{path}.order", f"is {message.order}, must be a value of BucketOrder")
    limits = BucketLimits(
        message.name,
        message.max_in_flight,
        message.max_queued or _DEFAULTS.max_queued,
        start_by=message.start_by_s or _DEFAULTS.start_by,
        rate_per_s=message.rate_per_s,
        burst=message.burst,
        order=ORDERS.get(message.order, BucketOrder.FIFO),
        adaptive=message.adaptive,
        paused=message.paused,
        max_hold=message.max_hold_s,
    )
    for field, problem in limits.problems():
        fields.refuse(f"{path}.{field}", problem)
    fields.check()
    return limits


def bucket_config_message(limits: BucketLimits) -> pb.BucketConfig:
    """The configuration in force."""
    return pb.BucketConfig(
        name=limits.name,
        max_in_flight=limits.max_in_flight,
        rate_per_s=limits.rate_per_s,
        burst=limits.most_at_once if limits.rate_per_s else 0,
        max_queued=limits.max_queued,
        start_by_s=limits.start_by,
        max_hold_s=limits.max_hold,
        order=ORDER_VALUES[limits.order],
        adaptive=limits.adaptive,
        paused=limits.paused,
        version=limits.version,
    )


DEFAULT_BUCKET = "code"
_QUEUE_TIMEOUT_S = 3600.0
MAX_HELLO_ITEMS = 200_000
"""Leases and requests that one hello may list: more than any client can have within default bounds."""


def acquire_event(
    session_id: str, message: pb.Acquire, identity: Identity = ANYONE, claims: Claims | None = None
) -> Acquire | Rejected:
    """The event, or the rejection that names the field that is wrong. `identity` is of whoever asks. `claims` judges
    the ticket; None: it does not count."""
    request_id, tokens, timeout = message.request_id, message.tokens or 1, message.queue_timeout_s
    hold, tenant = message.hold_s, message.tenant
    ticket = None
    problem = ""
    if not IDENTIFIER.fullmatch(request_id):
        problem = f"request_id is {request_id[:40]!r}, must be 1 to 128 characters of visible ASCII"
    elif tokens > MAX_TOKENS:
        problem = f"tokens is {tokens}, must be from 1 to {MAX_TOKENS}"
    elif not 0.0 <= timeout <= MAX_TIME_S:  # NaN is refused too
        problem = f"queue_timeout_s is {timeout}, must be from 0 to {MAX_TIME_S}"
    elif not 0.0 <= hold <= MAX_TIME_S:
        problem = f"hold_s is {hold}, must be from 0 to {MAX_TIME_S}"
    elif len(tenant) > 128:
        problem = f"tenant has {len(tenant)} characters, must have at most 128"
    if not problem and identity.tenant:
        try:
            tenant = identity.for_tenant(tenant)
        except TenantRefused as refused:
            problem = str(refused)
    if problem:
        return Rejected(session_id, request_id[:128], RejectReason.INVALID, problem)
    bucket = message.bucket or DEFAULT_BUCKET
    if claims is not None and message.HasField("ticket"):
        ticket = Ticket(message.ticket.epoch, message.ticket.seq)
        if not claims.owns_ticket(message.ticket.proof, session_id, ticket, bucket, tenant):
            ticket = None
    return Acquire(
        session_id,
        request_id,
        bucket,
        tokens,
        queue_timeout=timeout or _QUEUE_TIMEOUT_S,
        hold=hold,
        tenant=tenant,
        ticket=ticket,
    )


def check_hello(message: pb.Hello) -> SessionKind:
    """The kind of session that it opens. FieldErrors when that can't be, whatever it lists."""
    fields = Fields()
    session_id = fields.identifier("hello.session_id", message.session_id)
    fields.secret("hello.secret", message.secret)
    if session_id != session_of(message.secret):
        fields.refuse("hello.session_id", "must be the first 32 hexadecimal digits of the SHA-256 of hello.secret")
    if message.kind not in KINDS:
        fields.refuse("hello.kind", "is not set, must be SESSION_KIND_CLIENT or SESSION_KIND_EXECUTOR")
    fields.text("hello.name", message.name, longest=256)
    for name, count in (("held", len(message.held)), ("queued", len(message.queued))):
        if count > MAX_HELLO_ITEMS:
            fields.refuse(f"hello.{name}", f"has {count} entries, must have at most {MAX_HELLO_ITEMS}")
    fields.check()
    return KINDS[message.kind]


async def hello_event(
    message: pb.Hello, identity: Identity = ANYONE, claims: Claims | None = None
) -> tuple[Hello, list[Rejected]]:
    """The event of a hello that was checked, and rejections of requests in it that can't be taken. FieldErrors when a
    lease can't be. `claims` judges what an earlier leader gave; None: it does not count. Others have their turn before
    each slice of what it lists."""
    fields = Fields()
    session_id, leases = message.session_id, list[HeldLease]()
    for index, held in enumerate(message.held):
        if index % SLICE == 0:
            await asyncio.sleep(0)
        lease, tokens, hold = held.lease, held.tokens or 1, held.hold_s
        name = LeaseId(lease.epoch, lease.seq)
        if tokens > MAX_TOKENS:
            fields.refuse(f"hello.held[{index}].tokens", f"is {tokens}, must be at most {MAX_TOKENS}")
        if hold:
            fields.duration(f"hello.held[{index}].hold_s", hold, default=0.0, longest=MAX_TIME_S)
            if claims is None or not claims.owns_hold(
                held.proof, session_id, name, lease.bucket, tokens, identity.tenant
            ):
                hold = 0.0
        leases.append(HeldLease(name, lease.bucket, lease.client_session_id, tokens, hold))
    fields.check()
    requests: list[Acquire] = []
    rejected: list[Rejected] = []
    for index, each in enumerate(message.queued):
        if index % SLICE == 0:
            await asyncio.sleep(0)
        event = acquire_event(session_id, each, identity, claims)
        if isinstance(event, Rejected):
            rejected.append(event)
        else:
            requests.append(event)
    kind, name_shown = KINDS[message.kind], message.name or session_id
    return Hello(session_id, kind, name_shown, tuple(leases), tuple(requests), message.connection), rejected


def lease_message(lease: LeaseId, bucket: str, client_session_id: str) -> common_pb2.Lease:
    """The lease as clients pass it on."""
    return common_pb2.Lease(bucket=bucket, epoch=lease.epoch, seq=lease.seq, client_session_id=client_session_id)


def bucket_message(bucket: BucketStatistics) -> pb.BucketStatus:
    """Status of one bucket."""
    return pb.BucketStatus(
        config=bucket_config_message(bucket.limits),
        held=bucket.held,
        bound=bucket.bound,
        queued=bucket.queued,
        oldest_wait_s=bucket.oldest_wait,
        effective_limit=bucket.effective_limit,
        granted_total=bucket.granted_total,
        released_total=bucket.released_total,
        expired_total=bucket.revoked_total,
        rejected_total=bucket.rejected_total,
        grants_per_s=bucket.grants_per_s,
        wait_p50_s=bucket.wait_p50,
        wait_p99_s=bucket.wait_p99,
    )


def session_message(session: Session, now: float) -> pb.SessionStatus:
    """Status of one session."""
    return pb.SessionStatus(
        session_id=session.session_id,
        kind=KIND_VALUES[session.kind],
        name=session.name,
        connected=session.connected,
        held=sum(lease.tokens for lease in session.leases.values()),
        queued=sum(session.waiting.values()),
        idle_s=now - session.last_heard,
    )


def lease_info_message(lease: LeaseEntry, now: float) -> pb.LeaseInfo:
    """One lease in a list. What was adopted from an earlier epoch has no request."""
    request = lease.request
    return pb.LeaseInfo(
        lease=lease_message(lease.lease_id, lease.bucket.limits.name, lease.client_session_id),
        state=STATE_VALUES[lease.state],
        tokens=lease.tokens,
        request_id=request.request_id if request is not None else "",
        tenant=request.tenant if request is not None else "",
        holder_session_id=lease.holder.session_id,
        holder_name=lease.holder.name,
        age_s=now - lease.granted_at,
        run_id=lease.run_id,
    )
