"""Counts of what became of a server's requests since its start, in the form that Prometheus reads.

Invariants: each run is counted once, as ended or as refused; joined and repeated calls are not runs; at most
`max_tenants` tenants have counts of their own, those that came first, and all others are one.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cache

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import Metric

from executor_service.model import Cause, ExecutionResult, Outcome
from fairbox.net.metrics import SECONDS

OTHER_TENANTS = "(others)"
"""Name under which tenants are counted that have no count of their own."""
_BYTES = tuple(float(1 << power) for power in range(24, 35))
"""Bounds for memory of programs: 16 MiB (an interpreter) to 16 GiB (the usual maximum)."""


class Refusal(StrEnum):
    """Why a request has no result."""

    QUEUE_FULL = "queue_full"
    """As many requests waited here as may (max_queued)."""
    QUEUE_TIMEOUT = "queue_timeout"
    """It waited here for as long as any may (queue_timeout_s)."""
    DRAINING = "draining"
    """The server was ending."""
    LIMITER_DOWN = "limiter_down"
    """The limiter could not be reached, or did not vouch for the lease any more."""
    LIMITER_QUEUE_FULL = "limiter_queue_full"
    """The limiter took no more, or let it wait in vain."""
    LEASE_REFUSED = "lease_refused"
    """The lease could not be bound."""
    LEASE_LOST = "lease_lost"
    """The lease was bound to an earlier life of this server."""
    ABANDONED = "abandoned"
    """Its caller left before its program started."""
    OTHER = "other"
    """Anything else, such as a session that has ended. A defect of ours is in the log."""


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"fairbox_executor_{name}", text, labels, registry=None)


def _histogram(name: str, text: str, bounds: Sequence[float] = SECONDS) -> Histogram:
    return Histogram(f"fairbox_executor_{name}", text, buckets=bounds, registry=None)


class RunTally:
    """`ended` and `refused` count. Each outcome and each reason is there before it has happened, so that its rate has a
    beginning; runs by tenant are there with `max_tenants` alone."""

    def __init__(self, max_tenants: int = 0) -> None:
        self._max_tenants = max_tenants
        self._outcomes = _counter("executions", "Runs that have a result, by outcome and cause.", "outcome", "cause")
        self._refusals = _counter("refused", "Requests without a result, by reason.", "reason")
        self._tenants = _counter("tenant_executions", "Runs by tenant.", "tenant")
        self._known_tenants: set[str] = set()
        self._queue_s = _histogram("queue_seconds", "Time in queues.")
        """Includes the time in the limiter's queue, if the server waited in it."""
        self._setup_s = _histogram("setup_seconds", "Time to set the sandbox up and to bind the lease.")
        self._run_s = _histogram("run_seconds", "Wall time of programs.")
        self._peak_bytes = _histogram("peak_memory_bytes", "Peak memory of programs, if it is known.", _BYTES)
        self._ended = cache(lambda outcome, cause: self._outcomes.labels(outcome.value.lower(), cause.value.lower()))
        for outcome in Outcome:
            usual = Cause.INFRA if outcome in (Outcome.SANDBOX_ERROR, Outcome.CANCELLED) else Cause.POLICY
            self._ended(outcome, usual)
        for why in Refusal:
            self._refusals.labels(why.value)

    def ended(self, result: ExecutionResult, tenant: str) -> None:
        """A run has its result."""
        self._ended(result.outcome, result.cause).inc()
        self._queue_s.observe(result.queue_time_s)
        self._setup_s.observe(result.setup_time_s)
        self._run_s.observe(result.wall_time_s)
        if result.peak_memory_bytes:
            self._peak_bytes.observe(result.peak_memory_bytes)
        if self._max_tenants:
            if tenant not in self._known_tenants and len(self._known_tenants) >= self._max_tenants:
                tenant = OTHER_TENANTS
            else:
                self._known_tenants.add(tenant)
            self._tenants.labels(tenant).inc()

    def refused(self, why: Refusal) -> None:
        """A run has none."""
        self._refusals.labels(why.value).inc()

    def outcomes(self) -> dict[Outcome, int]:
        """Runs ended, by outcome."""
        found: Counts[Outcome] = Counts()
        for metric in self._outcomes.collect():
            for sample in metric.samples:
                if sample.value and sample.name.endswith("_total"):
                    found[Outcome(sample.labels["outcome"].upper())] += int(sample.value)
        return found

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        for each in (self._outcomes, self._refusals, self._queue_s, self._setup_s, self._run_s, self._peak_bytes):
            yield from each.collect()
        if self._max_tenants:
            yield from self._tenants.collect()
