"""What became of the requests of a server, counted since its start. Pure.

Invariants: each run is counted once, as ended or as refused; joined and repeated calls are not runs; at most
`max_tenants` tenants have counts of their own, those that came first, and all others are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client import Histogram

from executor_service.model import Cause, ExecutionResult, Outcome
from fairbox.metrics import SECONDS

__all__ = ["OTHER_TENANTS", "Refusal", "RunTally"]

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


def _histogram(name: str, text: str, bounds: Sequence[float] = SECONDS) -> Histogram:
    return Histogram(f"fairbox_executor_{name}", text, buckets=bounds, registry=None)


@dataclass(slots=True)
class RunTally:
    """`ended` and `refused` count; everything else is read."""

    max_tenants: int = 0
    outcomes: Counter[tuple[Outcome, Cause]] = field(default_factory=Counter)
    refusals: Counter[Refusal] = field(default_factory=Counter)
    tenants: Counter[str] = field(default_factory=Counter)
    """Runs that ended, by tenant; nothing with `max_tenants` 0."""
    queue_s: Histogram = field(default_factory=lambda: _histogram("queue_seconds", "Time in queues."))
    """Of the limiter's queue too, where the server waited in it."""
    setup_s: Histogram = field(
        default_factory=lambda: _histogram("setup_seconds", "Time to set the sandbox up and to bind the lease.")
    )
    run_s: Histogram = field(default_factory=lambda: _histogram("run_seconds", "Wall time of programs."))
    peak_bytes: Histogram = field(
        default_factory=lambda: _histogram("peak_memory_bytes", "Most memory of programs, where it is known.", _BYTES)
    )
    """Where the most memory of a program is known."""

    def ended(self, result: ExecutionResult, tenant: str) -> None:
        """A run has its result."""
        self.outcomes[result.outcome, result.cause] += 1
        self.queue_s.observe(result.queue_time_s)
        self.setup_s.observe(result.setup_time_s)
        self.run_s.observe(result.wall_time_s)
        if result.peak_memory_bytes:
            self.peak_bytes.observe(result.peak_memory_bytes)
        if self.max_tenants:
            known = tenant in self.tenants or len(self.tenants) - (OTHER_TENANTS in self.tenants) < self.max_tenants
            self.tenants[tenant if known else OTHER_TENANTS] += 1

    def refused(self, why: Refusal) -> None:
        """A run has none."""
        self.refusals[why] += 1
