"""Who runs now and who waits: a fixed number of slots, a bounded queue, first in first out.

A request enters when it arrives. It may start once it is eligible (a request without a lease is not, until the limiter
has granted it one); among the eligible, whoever entered first starts first. Whoever leaves, for whatever reason, is
gone from every count.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

_RECENT = 0.1
"""Weight of the newest duration in the running mean that the advice on retrying is made of."""
_ADVICE_RANGE_S = (0.05, 30.0)


class QueueFull(Exception):  # noqa: N818 - a decision
    """No more requests are taken. `retry_after_s` is an estimate."""

    def __init__(self, limit: int, retry_after_s: float) -> None:
        super().__init__(f"{limit} requests wait already (max_queued)")
        self.retry_after_s = retry_after_s


@dataclass(eq=False, slots=True)
class Place:
    """The place of one request. `started` is set when it has a slot."""

    entered_at: float
    eligible: bool
    started: asyncio.Event = field(default_factory=asyncio.Event)
    started_at: float = 0.0
    left: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """Counts at one instant."""

    max_running: int
    running: int
    max_queued: int
    queued: int
    oldest_wait_s: float


class Admission:
    def __init__(self, *, max_running: int, max_queued: int) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._free = max_running
        self._waiting: dict[Place, None] = {}
        self._mean_s = 1.0

    @property
    def has_room(self) -> bool:
        """Whether whoever becomes eligible now starts at once: among those who may start nobody waits then."""
        return self._free > 0

    def enter(self, now: float, *, eligible: bool) -> Place:
        """Takes a request in, which may start at once. Raises QueueFull."""
        starts_now = eligible and self._free and not self._next_eligible()
        if not starts_now and len(self._waiting) >= self._max_queued:
            low, high = _ADVICE_RANGE_S
            advice = self._mean_s * (len(self._waiting) + 1) / self._max_running
            raise QueueFull(self._max_queued, min(max(advice, low), high))
        place = Place(now, eligible)
        self._waiting[place] = None
        self._start(now)
        return place

    def eligible(self, place: Place, now: float) -> None:
        """It may start from now on. Without effect when it has left."""
        place.eligible = True
        self._start(now)

    def leave(self, place: Place, now: float) -> None:
        """It has ended or gave up, and another one starts in its stead. Idempotent."""
        self._waiting.pop(place, None)
        if place.started.is_set() and not place.left:
            self._free += 1
            self._mean_s += _RECENT * (now - place.started_at - self._mean_s)
        place.left = True
        self._start(now)

    def statistics(self, now: float) -> AdmissionStatistics:
        oldest = next(iter(self._waiting), None)
        return AdmissionStatistics(
            max_running=self._max_running,
            running=self._max_running - self._free,
            max_queued=self._max_queued,
            queued=len(self._waiting),
            oldest_wait_s=now - oldest.entered_at if oldest else 0.0,
        )

    def _start(self, now: float) -> None:
        while self._free and (place := self._next_eligible()) is not None:
            del self._waiting[place]
            place.started_at = now
            self._free -= 1
            place.started.set()

    def _next_eligible(self) -> Place | None:
        return next((place for place in self._waiting if place.eligible), None)
