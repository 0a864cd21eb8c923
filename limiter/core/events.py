"""Events that can happen to the limiter: the inputs of `LimiterCore.handle`.

Whoever made the event has checked every value for type and range; the core checks what needs its state.
Times are durations in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

from limiter.core.ids import LeaseId, Ticket
from limiter.core.limits import BucketLimits
from limiter.core.reasons import ReleaseOutcome, SessionKind

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def fast_record(cls: type[T]) -> type[T]:
    """A class decorator: a dataclass with slots, equality and a hash, whose fields nobody may assign to.

    Several events and effects are made for every lease, and a frozen dataclass stores each field by
    `object.__setattr__`: with seven fields one costs 0.78 us to make and another 0.16 us (Python 3.11). So these are
    frozen for the type checker, and for no one else.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


@fast_record
class Acquire:
    """A session asks for tokens. A repeat of its id is answered with the same ticket or grant."""

    session_id: str
    request_id: str
    bucket: str = "code"
    tokens: int = 1
    """Weight of the lease, all or nothing."""
    queue_timeout: float = 3600.0
    """The longest wait in the queue."""
    start_by: float | None = None
    """The lease ends unless bound within this time. None: the bucket's value."""
    hold: float = 0.0
    """Above 0: nobody will bind the lease; it ends after this time, and not before by the end of its session."""
    tenant: str = ""
    ticket: Ticket | None = None
    """A place given earlier, presented again; whoever makes the event has seen that it was given to this session, for
    this bucket and tenant."""
    unary: bool = False
    """Make the session if it does not exist."""


@fast_record
class Cancel:
    """A session withdraws a request, waiting or granted; answered by `Released`."""

    session_id: str
    request_id: str


@fast_record
class Release:
    """A session gives a lease back; answered by `Released`."""

    session_id: str
    lease: LeaseId
    outcome: ReleaseOutcome = ReleaseOutcome.OK
    unbound_only: bool = False
    """Said by somebody who has only seen the lease, so that it must not free what an executor has bound."""


@fast_record
class Bind:
    """An executor claims a lease for a run; answered by `BindAnswered`."""

    session_id: str
    lease: LeaseId
    client_session_id: str
    run_id: str = ""


@fast_record
class HeldLease:
    """A lease that a hello lists, with what is needed to adopt it from an earlier epoch."""

    lease: LeaseId
    bucket: str
    client_session_id: str
    tokens: int = 1
    hold: float = 0.0
    """Seconds left of its hold time, if a client has it to hold; whoever makes the event has seen that it was
    granted to this session, with these tokens."""


@fast_record
class Hello:
    """A stream opens or resumes a session. What it lists of this epoch is kept, what it omits is freed. Answered by
    `Welcomed`, or by `Unread` where it lists much: then each `ReadOn` goes on with it."""

    session_id: str
    kind: SessionKind
    name: str = ""
    held: tuple[HeldLease, ...] = ()
    queued: tuple[Acquire, ...] = ()
    connection: int = 0
    """Grows with each connection of the session; a lower one than before is late and refused. 0: not said."""


@fast_record
class ReadOn:
    """The next step of a long hello; answered as the hello itself. Nothing happens when there is none."""

    session_id: str


@fast_record
class Disconnect:
    """A session's stream ended. Frees nothing by itself."""

    session_id: str


@fast_record
class Goodbye:
    """An executor ends in order and runs nothing. Ignored while it has a lease."""

    session_id: str


@fast_record
class Returning:
    """An executor has begun to say hello. If it is known, or a recovery waits for it, its heartbeat is answered by
    `HeartbeatAcked` before what it lists is read; the recovery waits for it anew, once."""

    session_id: str
    number: int


@fast_record
class Reading:
    """A hello has come that a recovery must not end without, and is being read (1), or is not any more (-1)."""

    change: int


@fast_record
class Heartbeat:
    """A session is alive; answered by `HeartbeatAcked`."""

    session_id: str
    number: int


@fast_record
class Revoke:
    """An operator takes a lease back; answered by `RevokeAnswered`."""

    lease: LeaseId
    force: bool = False
    """Also when it is bound."""
    reason: str = "revoked by an operator"


@fast_record
class Configure:
    """Creates a bucket or changes its limits; answered by `Configured`. Lowering a limit never revokes."""

    limits: BucketLimits
    expected_version: int | None
    """Version that the change is based on; 0: the bucket must not exist yet; None: whatever it is."""


@fast_record
class LeadUntil:
    """Nobody else can lead before this time. Once it has come, nothing may be decided any more."""

    until: float


@fast_record
class RosterKept:
    """A version of the roster is where the next leader will find it; lets in the executors that waited for it."""

    version: int


@fast_record
class RosterFailed:
    """The last roster could not be kept: the executors that wait for it are refused, and go on trying."""

    message: str


@fast_record
class Tick:
    """Time has passed: `next_deadline()` was reached."""


Event = (
    Acquire
    | Cancel
    | Release
    | Bind
    | Hello
    | ReadOn
    | Disconnect
    | Goodbye
    | Returning
    | Reading
    | Heartbeat
    | Revoke
    | Configure
    | LeadUntil
    | RosterKept
    | RosterFailed
    | Tick
)
