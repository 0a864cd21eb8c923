"""Statistics of the limiter's buckets at one instant, as frozen facts. Counters count since the start; times are in
seconds. Sessions and leases are shown as the core has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from limiter.core.bucket import Bucket, BucketLimits
from limiter.core.reasons import ReleaseOutcome, SessionKind

if TYPE_CHECKING:
    from limiter.core.ledger import Ledger


@dataclass(frozen=True, slots=True)
class BucketStatistics:
    """One bucket."""

    limits: BucketLimits
    effective_limit: int
    """The limit now in force; below `max_in_flight` only where it adapts."""
    held: int
    """Tokens in use, granted or bound."""
    bound: int
    """Tokens of those that an executor has bound."""
    queued: int
    """Requests that wait, those of disconnected sessions included."""
    oldest_wait: float
    """Seconds that the request at the head has waited; 0 with an empty queue."""
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
    """True if nothing is granted yet, because programs of an earlier leader may be running uncounted."""
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
    buckets: tuple[BucketStatistics, ...]
    """By name."""

    def bucket(self, name: str = "code") -> BucketStatistics:
        """The bucket of that name; KeyError when there is none."""
        for bucket in self.buckets:
            if bucket.limits.name == name:
                return bucket
        raise KeyError(name)


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
