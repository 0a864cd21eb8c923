"""The limiter's rules as a pure state machine: `LimiterCore.handle(event, now) -> effects`.

It does no I/O, has no clock and starts no task; servers and simulations wrap it.
"""

from __future__ import annotations

from limiter.core.core import LimiterCore
from limiter.core.ids import LeaseId, Ticket
from limiter.core.limits import BucketLimits, Timing
from limiter.core.reasons import BindStatus, BucketOrder, LeaseState, RejectReason, ReleaseOutcome, SessionKind
from limiter.core.recovery import Member
from limiter.core.session_rules import SLICE
from limiter.core.statistics import BucketStatistics, LimiterStatistics

__all__ = [
    "SLICE",
    "BindStatus",
    "BucketLimits",
    "BucketOrder",
    "BucketStatistics",
    "LeaseId",
    "LeaseState",
    "LimiterCore",
    "LimiterStatistics",
    "Member",
    "RejectReason",
    "ReleaseOutcome",
    "SessionKind",
    "Ticket",
    "Timing",
]
