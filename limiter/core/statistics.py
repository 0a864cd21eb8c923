"""What the limiter is doing at one instant, as frozen facts. Counters count since the start; times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from limiter.core.bucket import Bucket, BucketLimits
from limiter.core.ids import LeaseId
from limiter.core.reasons import LeaseState, ReleaseOutcome, SessionKind

if TYPE_CHECKING:
    from limiter.core.ledger import Ledger

__all__ = ["BucketStatistics", "LeaseInfo", "LimiterStatistics", "SessionStatistics"]


@dataclass(frozen=True, slots=True)
class BucketStatistics:
    """One bucket."""

    limits: BucketLimits
    effective_limit: int
    """The limit now in force; below `max_in_flight` only where it adapts."""
    held: int
    """Tokens in use, granted or bound."""
    bound: int
    """Of those, tokens that an executor has bound."""
    queued: int
    """Requests that wait, those of disconnected sessions included."""
    oldest_wait: float
    """How long the request at the head has waited; 0 with an empty queue."""
    granted_total: int
    released_total: int
    revoked_total: int
    """Leases taken back: not bound in time, client gone, executor gone, grant lost, revoked."""
    rejected_total: int
    cancelled_total: int
    """Waiting requests that were withdrawn, or whose client has gone."""
    outcomes: dict[ReleaseOutcome, int]
    grants_per_s: float
    wait_p50: float
    wait_p99: float


@dataclass(frozen=True, slots=True)
class LimiterStatistics:
    """The whole limiter."""

    epoch: int
    recovering: bool
    """Whether nothing is granted yet, because programs of an earlier leader may be running uncounted."""
    recovering_for: float
    """The longest that it can still last; 0 when it is over."""
    missing: tuple[str, ...]
    """Names of the executors that it waits for."""
    uptime: float
    held: int
    bound: int
    queued: int
    sessions: int
    executors: int
    tombstones: int
    buckets: tuple[BucketStatistics, ...]
    """By name."""

    def bucket(self, name: str = "code") -> BucketStatistics:
        """The bucket of that name; KeyError when there is none."""
        for bucket in self.buckets:
            if bucket.limits.name == name:
                return bucket
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """One session."""

    session_id: str
    kind: SessionKind
    name: str
    connected: bool
    held: int
    """Tokens that it holds."""
    queued: int
    idle: float
    """Time since it was last heard of."""


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """One lease."""

    lease: LeaseId
    bucket: str
    client_session_id: str
    state: LeaseState
    tokens: int
    request_id: str
    tenant: str
    holder_session_id: str
    holder_name: str
    age: float
    run_id: str


def snapshot(ledger: Ledger, now: float, uptime: float) -> LimiterStatistics:
    """The state of every bucket; O(buckets + sessions)."""
    recovery = ledger.recovery
    buckets = tuple(_bucket(ledger.buckets[name], now) for name in sorted(ledger.buckets))
    return LimiterStatistics(
        epoch=ledger.epoch,
        recovering=recovery.active,
        recovering_for=max(0.0, recovery.until - now) if recovery.active else 0.0,
        missing=tuple(member.name for member in recovery.missing.values()),
        uptime=uptime,
        held=sum(bucket.held for bucket in buckets),
        bound=sum(bucket.bound for bucket in buckets),
        queued=sum(bucket.queued for bucket in buckets),
        sessions=len(ledger.sessions),
        executors=sum(session.kind is SessionKind.EXECUTOR for session in ledger.sessions.values()),
        tombstones=len(ledger.tombstones),
        buckets=buckets,
    )


def _bucket(bucket: Bucket, now: float) -> BucketStatistics:
    head = bucket.queue.head()
    return BucketStatistics(
        limits=bucket.limits,
        effective_limit=bucket.effective_limit,
        held=bucket.held,
        bound=bucket.bound,
        queued=bucket.waiting,
        oldest_wait=now - head.since if head is not None else 0.0,
        granted_total=bucket.granted_total,
        released_total=bucket.released_total,
        revoked_total=bucket.revoked_total,
        rejected_total=bucket.rejected_total,
        cancelled_total=bucket.cancelled_total,
        outcomes=dict(bucket.outcomes),
        grants_per_s=bucket.meter.rate(now),
        wait_p50=bucket.meter.percentile(0.50),
        wait_p99=bucket.meter.percentile(0.99),
    )


def session_statistics(ledger: Ledger, now: float, limit: int) -> list[SessionStatistics]:
    """At most `limit` sessions, executors first."""
    ordered = sorted(ledger.sessions.values(), key=lambda session: session.kind is not SessionKind.EXECUTOR)
    return [
        SessionStatistics(
            session_id=session.session_id,
            kind=session.kind,
            name=session.name,
            connected=session.connected,
            held=sum(lease.tokens for lease in session.leases.values()),
            queued=sum(session.waiting.values()),
            idle=now - session.last_heard,
        )
        for session in ordered[:limit]
    ]


def list_leases(ledger: Ledger, now: float, bucket: str, after: str, limit: int) -> list[LeaseInfo]:
    """At most `limit` leases by id; ValueError when `after` is not an id."""
    first = LeaseId.parse(after) if after else LeaseId(0, 0)
    chosen = sorted(
        lease_id
        for lease_id, lease in ledger.leases.items()
        if lease_id > first and bucket in ("", lease.bucket.limits.name)
    )
    return [_lease(ledger, lease_id, now) for lease_id in chosen[:limit]]


def _lease(ledger: Ledger, lease_id: LeaseId, now: float) -> LeaseInfo:
    lease = ledger.leases[lease_id]
    request = lease.request
    return LeaseInfo(
        lease=lease_id,
        bucket=lease.bucket.limits.name,
        client_session_id=lease.client_session_id,
        state=lease.state,
        tokens=lease.tokens,
        request_id=request.request_id if request is not None else "",
        tenant=request.tenant if request is not None else "",
        holder_session_id=lease.holder.session_id,
        holder_name=lease.holder.name,
        age=now - lease.granted_at,
        run_id=lease.run_id,
    )
