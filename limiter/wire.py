"""Translates the core's words to limiter.v1's and back: the same names, after the name of their enum.

One table for both directions and both sides; a word without a value there fails at import.
"""

from __future__ import annotations

import hashlib

from limiter.core.reasons import BindStatus, BucketOrder, LeaseState, RejectReason, ReleaseOutcome, SessionKind
from limiter.v1 import limiter_pb2 as pb

OUTCOME_VALUES = {each: pb.ReleaseOutcome.Value(f"RELEASE_OUTCOME_{each.name}") for each in ReleaseOutcome}
OUTCOMES = {pb.RELEASE_OUTCOME_UNSPECIFIED: ReleaseOutcome.OK} | {value: each for each, value in OUTCOME_VALUES.items()}

REJECT_REASONS = {
    pb.RejectReason.Value(f"REJECT_REASON_{each.name}"): each
    for each in RejectReason
    if each is not RejectReason.CANCELLED  # of unary calls alone, which end with a status
}
REJECT_REASON_VALUES: dict[RejectReason, pb.RejectReason.ValueType] = {
    RejectReason.CANCELLED: pb.REJECT_REASON_INVALID,
    **{each: value for value, each in REJECT_REASONS.items()},
}

BIND_STATUS_VALUES = {each: pb.BindStatus.Value(f"BIND_STATUS_{each.name}") for each in BindStatus}
BIND_STATUSES = {value: each for each, value in BIND_STATUS_VALUES.items()}

KINDS = {pb.SESSION_KIND_CLIENT: SessionKind.CLIENT, pb.SESSION_KIND_EXECUTOR: SessionKind.EXECUTOR}
KIND_VALUES = {each: value for value, each in KINDS.items()} | {SessionKind.UNARY: pb.SESSION_KIND_CLIENT}

STATE_VALUES = {each: pb.LeaseState.Value(f"LEASE_STATE_{each.name}") for each in LeaseState}

ORDER_VALUES = {each: pb.BucketOrder.Value(f"BUCKET_ORDER_{each.name}") for each in BucketOrder}
ORDERS = {pb.BUCKET_ORDER_UNSPECIFIED: BucketOrder.FIFO} | {value: each for each, value in ORDER_VALUES.items()}


def session_of(secret: str) -> str:
    """Id of the session that belongs to whoever knows the secret."""
    return hashlib.sha256(secret.encode()).hexdigest()[:32]
