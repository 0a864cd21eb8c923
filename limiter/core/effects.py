"""Decisions of the limiter: the outputs of `LimiterCore.handle`, in the order in which they have to be told.

Each names the session that it is for, if it is for one. Times are durations in seconds.
"""

from __future__ import annotations

from limiter.core.events import HeldLease, fast_record
from limiter.core.ids import LeaseId, Ticket
from limiter.core.reasons import BindStatus, LeaseState, RejectReason
from limiter.core.recovery import Member


@fast_record
class Granted:
    """A request was granted."""

    session_id: str
    request_id: str
    bucket: str
    lease: LeaseId
    start_by: float
    """The lease ends unless bound within this time."""
    waited: float
    """Time spent in the queue."""
    ticket: Ticket
    """The place that the request had."""
    tokens: int
    tenant: str
    held: bool
    """True if it has a hold time."""


@fast_record
class Queued:
    """A request has its place in the queue."""

    session_id: str
    request_id: str
    ticket: Ticket
    bucket: str
    tenant: str


@fast_record
class Rejected:
    """A request will not be granted."""

    session_id: str
    request_id: str
    reason: RejectReason
    message: str
    retry_after: float = 0.0
    """When asking again makes sense; 0: it does not."""


@fast_record
class BindAnswered:
    """Answer to a bind."""

    session_id: str
    lease: LeaseId
    status: BindStatus
    owner: str = ""
    """With BOUND_ELSEWHERE: name of the executor that holds it."""
    tokens: int = 0
    """With BOUND: tokens that it holds."""


@fast_record
class Released:
    """Answer to a release or a cancel."""

    session_id: str
    released: bool
    """True if it ended a lease or a waiting request."""
    bound: bool = False
    """True if an executor has bound the lease, so that only the executor frees it."""


@fast_record
class Revoked:
    """A lease was taken back from the session that held it."""

    session_id: str
    lease: LeaseId
    bucket: str
    client_session_id: str
    reason: str


@fast_record
class Welcomed:
    """A session is open. Comes before everything else that is for the session."""

    session_id: str
    unknown: tuple[HeldLease, ...] = ()
    """Leases that the hello listed and that are not held for this session; work under them must end. Where there are
    many, the others are `Revoked`."""


@fast_record
class Unread:
    """A hello is too long for one step: `ReadOn` is to follow soon, after whatever else is to be done."""

    session_id: str


@fast_record
class Refused:
    """A hello was refused; the stream has to end."""

    session_id: str
    message: str
    retry_after: float = 0.0
    """When trying again makes sense; 0: it does not."""


@fast_record
class HeartbeatAcked:
    """A heartbeat counts."""

    session_id: str
    number: int


@fast_record
class SessionEnded:
    """A session has ended although its stream may be open; the stream has to end, so that its peer starts afresh."""

    session_id: str
    reason: str


@fast_record
class RevokeAnswered:
    """Answer to a revoke: the state of the lease before it, None when there is no such lease."""

    lease: LeaseId
    was: LeaseState | None


@fast_record
class Configured:
    """Answer to a configure."""

    bucket: str
    version: int
    """The version now in force."""
    changed: bool
    """False when the expected version was another one."""


@fast_record
class RosterChanged:
    """The roster has to be kept for the next leader; answered by `RosterKept`, of this version or a later one."""

    members: tuple[Member, ...]
    version: int


@fast_record
class SteppedDown:
    """Another limiter may lead. Nothing is decided any more; every stream has to end."""


Effect = (
    Granted
    | Queued
    | Rejected
    | BindAnswered
    | Released
    | Revoked
    | Welcomed
    | Unread
    | Refused
    | HeartbeatAcked
    | SessionEnded
    | RevokeAnswered
    | Configured
    | RosterChanged
    | SteppedDown
)
