"""One bucket: its limits, the requests that wait for it, and how many of its tokens are in use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from limiter.core.adaptive import AimdLimit
from limiter.core.deadlines import NEVER
from limiter.core.ids import LeaseId
from limiter.core.limits import BucketLimits
from limiter.core.meter import GrantMeter
from limiter.core.rate import RateBucket
from limiter.core.reasons import BucketOrder, ReleaseOutcome
from limiter.core.waiting import FairQueue, Queue, WaitQueue

if TYPE_CHECKING:
    from limiter.core.lease import Request

__all__ = ["Bucket", "BucketLimits"]


class Bucket:
    """A record of what is in use and what waits: `LimiterCore` alone changes it."""

    __slots__ = (
        "adaptive",
        "bound",
        "cancelled_total",
        "cap",
        "deadline",
        "granted_total",
        "held",
        "limits",
        "meter",
        "outcomes",
        "queue",
        "rate",
        "rejected_total",
        "released_total",
        "revoked_total",
        "waiting",
    )

    def __init__(self, limits: BucketLimits, now: float) -> None:
        self.limits = limits
        self.queue: Queue = _queue(limits)
        """Those that can be granted: their sessions are connected."""
        self.waiting = 0
        """All that wait, those of disconnected sessions included."""
        self.held = 0
        self.bound = 0
        self.cap = limits.max_in_flight
        """Tokens up to which grants go on now: the effective limit, or 0 while it is paused."""
        self.rate: RateBucket | None = None
        self.adaptive: AimdLimit | None = None
        self.deadline = NEVER
        """When the head fits, if only the rate keeps it waiting."""
        self.meter = GrantMeter(now)
        self.granted_total = 0
        self.released_total = 0
        self.revoked_total = 0
        self.rejected_total = 0
        self.cancelled_total = 0
        self.outcomes: dict[ReleaseOutcome, int] = dict.fromkeys(ReleaseOutcome, 0)
        self.configure(limits, now)

    @property
    def effective_limit(self) -> int:
        """Most tokens in use, as the adaptive limit has it now."""
        return self.limits.max_in_flight if self.adaptive is None else self.adaptive.limit

    def fits(self, request: Request) -> bool:
        """Whether tokens are free for the request. What is heavier than an adapted limit fits alone, because the limit
        only rises with work that ends."""
        held, cap = self.held, self.cap
        return request.tokens <= cap - held or (held == 0 < cap)

    def ready_at(self) -> float:
        """When the rate lets the next request through; only with a rate."""
        assert self.rate is not None
        return self.rate.ready_at(1)

    def count_outcome(self, outcome: ReleaseOutcome) -> None:
        """Work under a lease has ended."""
        self.released_total += 1
        self.outcomes[outcome] += 1

    def adapt(self, outcome: ReleaseOutcome, lease: LeaseId, newest: LeaseId) -> None:
        """The same, where the limit adapts: its tokens are still counted; `newest` was granted last."""
        assert self.adaptive is not None
        if outcome is ReleaseOutcome.OK:
            self.adaptive.good(self.held)
        elif outcome in (ReleaseOutcome.OVERLOADED, ReleaseOutcome.TIMEOUT):
            self.adaptive.overloaded(lease, newest)
        self._set_cap()

    def pace(self, now: float) -> float:
        """Grants per second to be expected, from the recent past and the rate; 0: unknown."""
        recent, most = self.meter.estimate(now), self.limits.rate_per_s
        return min(recent, most) if recent and most else recent or most

    def retry_after(self, now: float) -> float:
        """Seconds after which a full queue should have drained."""
        pace = self.pace(now)
        return min(60.0, max(0.1, self.waiting / pace)) if pace > 0 else 1.0

    def configure(self, limits: BucketLimits, now: float) -> None:
        """From now on other limits. What is held stays; the queue is the caller's to `reorder`."""
        self.limits = limits
        if not limits.rate_per_s:
            self.rate = None
        elif self.rate is None:
            self.rate = RateBucket(limits.rate_per_s, limits.most_at_once, now)
        else:
            self.rate.change(limits.rate_per_s, limits.most_at_once, now)
        if not limits.adaptive:
            self.adaptive = None
        elif self.adaptive is None:
            self.adaptive = AimdLimit(limits.max_in_flight)
        else:
            self.adaptive.change(limits.max_in_flight)
        self._set_cap()

    def reorder(self, requests: Iterable[Request]) -> None:
        """Starts another queue, in the order that the limits ask for, with these requests."""
        self.queue = _queue(self.limits)
        for request in sorted(requests, key=lambda each: each.ticket):
            self.queue.put_back(request)

    def _set_cap(self) -> None:
        self.cap = 0 if self.limits.paused else self.effective_limit


def _queue(limits: BucketLimits) -> Queue:
    return FairQueue() if limits.order is BucketOrder.FAIR_BY_TENANT else WaitQueue()
