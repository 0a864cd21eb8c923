"""One bucket: its limits, the requests that wait for it, and how many of its tokens are in use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from limiter.core.deadlines import NEVER
from limiter.core.ids import LeaseId
from limiter.core.limits import BucketLimits
from limiter.core.reasons import BucketOrder, ReleaseOutcome
from limiter.core.waiting import FairQueue, Queue, WaitQueue

if TYPE_CHECKING:
    from limiter.core.lease import Request

__all__ = ["AimdLimit", "Bucket", "BucketLimits", "GrantMeter", "RateBucket"]


# A limit on grants per second, as the generic cell rate algorithm (ITU-T I.371): one instant instead of a counter.
#
# The instant is when the bucket was empty. What it holds now follows from it, and so does when it will hold n: the very
# number that a deadline is set to, so that nothing is lost to rounding when the deadline comes.


class RateBucket:
    """Fills with `rate` tokens a second up to `burst`. Starts empty, because whoever led before may just have given a
    whole burst. Never negative: take only what `ready_at` says is there."""

    __slots__ = ("_empty_at", "burst", "rate")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self._empty_at = now

    def ready_at(self, count: int) -> float:
        """When `count` tokens are there, at most `burst`; in the past when they are there already."""
        return self._empty_at + count / self.rate

    def available(self, now: float) -> float:
        """Tokens that are there."""
        return min(float(self.burst), max(0.0, (now - self._empty_at) * self.rate))

    def take(self, count: int, now: float) -> None:
        """Takes `count` tokens, which are there."""
        self._empty_at = max(self._empty_at, now - self.burst / self.rate) + count / self.rate

    def change(self, rate: float, burst: int, now: float) -> None:
        """From now on other numbers; what is there stays, up to the new burst."""
        there = self.available(now)
        self.rate, self.burst = rate, burst
        self._empty_at = now - min(there, burst) / rate


# A limit that adapts: additive increase, multiplicative decrease (AIMD).
#
# The formula is that of Netflix concurrency-limits, `AIMDLimit`: on a drop or a timeout `limit * backoff`; otherwise,
# when `in flight * 2 >= limit`, `limit + 1`; always between a floor and a cap. Two things differ. The increase is
# spread over as many good ends as the limit counts, as TCP spreads it over a window, because one per end would undo
# each decrease at once. And work that was granted before the last decrease does not decrease again: it tells of the
# same overload.


_FLOOR = 1
"""The lowest limit: with one token the work that ends well can still raise it."""
_BACKOFF = 0.8
"""Factor on overload: a step that a few good windows make up for, where halving would leave half of the work idle."""


class AimdLimit:
    """The limit now in force, `limit`: from 1 to `most`, where it starts."""

    __slots__ = ("_decreased_at", "_most", "_value")

    def __init__(self, most: int) -> None:
        self._most = most
        self._value = float(most)
        self._decreased_at = LeaseId(0, 0)

    @property
    def limit(self) -> int:
        """Tokens that may be in use."""
        return int(self._value)

    def good(self, held: int) -> None:
        """Work has ended well while `held` tokens were in use, its own included."""
        if held * 2 >= self.limit:
            self._value = min(float(self._most), self._value + 1.0 / self.limit)

    def overloaded(self, lease: LeaseId, newest: LeaseId) -> None:
        """The work of `lease` met overload or a timeout; `newest` was granted last."""
        if lease > self._decreased_at:
            self._value = max(float(_FLOOR), self._value * _BACKOFF)
            self._decreased_at = newest

    def change(self, most: int) -> None:
        """From now on another cap. A limit that stood at its cap goes with the cap."""
        value = float(most) if self._value >= self._most else self._value
        self._most = most
        self._value = min(float(most), value)


# How fast a bucket grants and how long requests wait: for status and retry delays.


_WAITS = 1024
"""Waits that percentiles are taken over."""
_WINDOW_S = 60
"""Whole seconds that the rate of grants is taken over."""


class GrantMeter:
    """Counts grants by second and keeps the latest waits. Memory is constant."""

    def __init__(self, now: float) -> None:
        self._started = now
        self._waits: deque[float] = deque(maxlen=_WAITS)
        self._seconds: deque[tuple[int, int]] = deque()
        self._second = int(now)
        self._in_second = 0

    def record(self, now: float, waited: float) -> None:
        """One grant after `waited` seconds in the queue."""
        second = int(now)
        if second != self._second:
            self._roll(second)
        self._in_second += 1
        self._waits.append(waited)

    def rate(self, now: float) -> float:
        """Grants per second over the last minute, or over the time since the start where that is shorter."""
        self._roll(int(now))
        total = self._in_second + sum(count for _, count in self._seconds)
        return total / max(1.0, min(_WINDOW_S, now - self._started))

    def percentile(self, share: float) -> float:
        """The wait that `share` (0 to 1) of the latest grants did not exceed; 0 when there were none."""
        ordered = sorted(self._waits)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def _roll(self, second: int) -> None:
        if second != self._second:
            if self._in_second:
                self._seconds.append((self._second, self._in_second))
            self._second, self._in_second = second, 0
        while self._seconds and self._seconds[0][0] <= second - _WINDOW_S:
            self._seconds.popleft()


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
        """Requests that can be granted: their sessions are connected."""
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
        """Says whether tokens are free for the request. A request heavier than an adapted limit fits alone, because the
        limit only rises with work that ends."""
        held, cap = self.held, self.cap
        return request.tokens <= cap - held or (held == 0 < cap)

    def has_room(self, tokens: int) -> bool:
        """Says whether so many tokens that an earlier leader granted are within the limit."""
        return self.held + tokens <= self.limits.max_in_flight

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

    def retry_after(self, now: float) -> float:
        """Seconds after which a full queue should have drained, going by the recent past and the rate."""
        recent, most = self.meter.rate(now), self.limits.rate_per_s
        pace = min(recent, most) if recent and most else recent or most
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
            self.queue.add(request)

    def _set_cap(self) -> None:
        self.cap = 0 if self.limits.paused else self.effective_limit


def _queue(limits: BucketLimits) -> Queue:
    return FairQueue() if limits.order is BucketOrder.FAIR_BY_TENANT else WaitQueue()
