"""One session: a client, an executor, or the unary calls of one client id."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from limiter.core.deadlines import NEVER
from limiter.core.ids import LeaseId
from limiter.core.reasons import SessionKind

if TYPE_CHECKING:
    from limiter.core.lease import Lease, Request

__all__ = ["Session"]


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
    leases: dict[LeaseId, Lease] = field(default_factory=dict)
    """What it holds now: granted to it, or bound by it."""
    waiting: dict[str, int] = field(default_factory=dict)
    """By bucket: how many of its requests wait."""
    connection: int = 0
    """Number of the newest connection that has said hello."""
    deadline: float = NEVER
