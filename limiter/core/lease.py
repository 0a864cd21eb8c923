"""A session, a request on its way through the queue, and a lease on its way from grant to release."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from limiter.core.deadlines import NEVER
from limiter.core.ids import LeaseId, Ticket
from limiter.core.reasons import LeaseState, SessionKind

if TYPE_CHECKING:
    from limiter.core.bucket import Bucket


@dataclass(slots=True, eq=False)
class Request:
    """One acquire. It waits (`waiting`), then has a lease, then ends. A record: `LimiterCore` alone changes it."""

    session: Session
    request_id: str
    bucket: Bucket
    tokens: int
    tenant: str
    start_by: float
    ticket: Ticket
    since: float
    """When it was asked for."""
    hold: float = 0.0
    """Above 0: nobody will bind its lease, which ends after this time."""
    waiting: bool = False
    lease: LeaseEntry | None = None
    """Lease that it was granted, until that ends."""
    deadline: float = NEVER
    """While it waits: when its queue timeout runs out."""


@dataclass(slots=True, eq=False)
class LeaseEntry:
    """Tokens in use. A record: `LimiterCore` alone changes it."""

    lease_id: LeaseId
    bucket: Bucket
    tokens: int
    client_session_id: str
    """Session that it was granted to; an executor presents it to bind the lease."""
    holder: Session
    """The client's session until it is bound, the executor's afterwards."""
    request: Request | None
    """The request that it answers; None when it was adopted from an earlier epoch."""
    granted_at: float
    state: LeaseState = LeaseState.GRANTED
    run_id: str = ""
    deadline: float = NEVER
    """While it is granted: when it ends unless bound; the end of its hold time, where it has one."""


@dataclass(slots=True, eq=False)
class Session:
    """Who asks for, holds or runs something. A record: `LimiterCore` alone changes it."""

    session_id: str
    kind: SessionKind
    name: str
    last_heard: float
    connected: bool = True
    gone_at: float = NEVER
    """When its stream ended; NEVER while it is connected."""
    requests: dict[str, Request] = field(default_factory=dict)
    """By request id: what it waits for, and what it was granted and has not ended, bound or not."""
    leases: dict[LeaseId, LeaseEntry] = field(default_factory=dict)
    """Leases that it holds now: granted to it, or bound by it."""
    waiting: dict[str, int] = field(default_factory=dict)
    """By bucket: how many of its requests wait."""
    connection: int = 0
    """Number of the newest connection that has said hello."""
    welcomed: bool = False
    """True if its hello has been read to the end: before that, its running programs may not be counted yet."""
    deadline: float = NEVER
