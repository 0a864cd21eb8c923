"""A waiting request as a session's machine keeps it, the news for its owner, and how limiter.v1 says them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fairbox.v1 import common_pb2
from limiter.client.lease import BindOutcome, Lease
from limiter.core.reasons import RejectReason
from limiter.v1 import limiter_pb2 as pb

Place = tuple[int, int, bytes]
"""A ticket: epoch, number and proof."""


@dataclass(slots=True)
class Wanted:
    """A request that waits."""

    request_id: str
    bucket: str
    tokens: int
    tenant: str
    deadline: float
    """When its queue timeout runs out."""
    ticket: Place | None = None
    """Once the limiter has said it."""
    place: tuple[int, Place] | None = None
    """Until it is sent: epoch and ticket of a lease that it is asked instead of. It takes that place if the limiter has
    been restarted since."""
    hold: float = 0.0
    """Above 0: the lease will not be bound, and ends after this time."""
    traceparent: str = ""
    """W3C trace context of whoever waits; empty: not traced."""


class RequestGranted(NamedTuple):
    """A request has its lease. A named tuple: there is one for every lease, and a frozen dataclass costs three times as
    much to make."""

    request_id: str
    lease: Lease


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A request has failed."""

    request_id: str
    reason: RejectReason
    message: str
    retry_after: float


@dataclass(frozen=True, slots=True)
class Lost:
    """A lease that was held is not any more; work under it must end."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class GoneAway:
    """The limiter ends this stream."""

    reason: str
    retry_after: float


News = RequestGranted | RequestRefused | BindOutcome | Lost | GoneAway


def lease_message(lease: Lease) -> common_pb2.Lease:
    """The lease as frames have it."""
    return common_pb2.Lease(
        bucket=lease.bucket, epoch=lease.epoch, seq=lease.seq, client_session_id=lease.client_session_id
    )


def fill_acquire(message: pb.Acquire, wanted: Wanted, now: float) -> None:
    """Writes down what is wanted; the queue timeout is what is left of it."""
    message.request_id = wanted.request_id
    message.bucket = wanted.bucket
    message.tokens = wanted.tokens
    message.queue_timeout_s = max(0.001, wanted.deadline - now)
    if wanted.tenant:
        message.tenant = wanted.tenant
    if wanted.hold:
        message.hold_s = wanted.hold
    if wanted.traceparent:
        message.traceparent = wanted.traceparent
    if wanted.ticket is not None:
        ticket = message.ticket
        ticket.epoch, ticket.seq, ticket.proof = wanted.ticket


def place_of(ticket: pb.Ticket) -> Place:
    """The ticket as it is remembered."""
    return ticket.epoch, ticket.seq, ticket.proof
