"""Between the messages of limiter.v1 and what the clients call the same things."""

from __future__ import annotations

from limiter.client.lease import Lease
from limiter.client.news import Wanted
from limiter.core.reasons import BindStatus, RejectReason, ReleaseOutcome, SessionKind
from limiter.v1 import limiter_pb2 as pb

__all__ = ["KINDS", "OUTCOMES", "REASONS", "STATUSES", "fill_acquire", "lease_message"]

OUTCOMES = {
    ReleaseOutcome.OK: pb.RELEASE_OUTCOME_OK,
    ReleaseOutcome.ERROR: pb.RELEASE_OUTCOME_ERROR,
    ReleaseOutcome.OVERLOADED: pb.RELEASE_OUTCOME_OVERLOADED,
    ReleaseOutcome.TIMEOUT: pb.RELEASE_OUTCOME_TIMEOUT,
    ReleaseOutcome.UNUSED: pb.RELEASE_OUTCOME_UNUSED,
}
REASONS = {
    pb.REJECT_REASON_QUEUE_FULL: RejectReason.QUEUE_FULL,
    pb.REJECT_REASON_QUEUE_TIMEOUT: RejectReason.QUEUE_TIMEOUT,
    pb.REJECT_REASON_UNKNOWN_BUCKET: RejectReason.UNKNOWN_BUCKET,
    pb.REJECT_REASON_INVALID: RejectReason.INVALID,
    pb.REJECT_REASON_NOT_LEADER: RejectReason.NOT_LEADER,
    pb.REJECT_REASON_SHUTTING_DOWN: RejectReason.SHUTTING_DOWN,
}
STATUSES = {
    pb.BIND_STATUS_BOUND: BindStatus.BOUND,
    pb.BIND_STATUS_UNKNOWN_LEASE: BindStatus.UNKNOWN_LEASE,
    pb.BIND_STATUS_WRONG_EPOCH: BindStatus.WRONG_EPOCH,
    pb.BIND_STATUS_WRONG_CLIENT: BindStatus.WRONG_CLIENT,
    pb.BIND_STATUS_BOUND_ELSEWHERE: BindStatus.BOUND_ELSEWHERE,
}
KINDS = {SessionKind.CLIENT: pb.SESSION_KIND_CLIENT, SessionKind.EXECUTOR: pb.SESSION_KIND_EXECUTOR}


def lease_message(lease: Lease) -> pb.Lease:
    """The lease as frames have it."""
    return pb.Lease(bucket=lease.bucket, epoch=lease.epoch, seq=lease.seq, client_session_id=lease.client_session_id)


def fill_acquire(message: pb.Acquire, wanted: Wanted, now: float) -> None:
    """Writes down what is wanted; the queue timeout is what is left of it."""
    message.request_id = wanted.request_id
    message.attempt = wanted.attempt
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
        message.ticket.epoch, message.ticket.seq = wanted.ticket
