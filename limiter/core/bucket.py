"""One bucket: its limits, the requests that wait for it, and how many of its tokens are in use."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limiter.core.meter import GrantMeter
from limiter.core.reasons import ReleaseOutcome

if TYPE_CHECKING:
    from limiter.core.lease import Request

__all__ = ["Bucket", "BucketLimits", "WaitQueue"]

_SLACK = 64
"""Stale heap entries that are always tolerated."""


@dataclass(frozen=True, slots=True)
class BucketLimits:
    """What a bucket allows."""

    name: str
    max_in_flight: int = 10
    """Most tokens held at once."""
    max_queued: int = 100_000
    """Most requests that wait."""
    max_queued_per_client: int = 10_000
    """Most requests of one session that wait."""
    start_by: float = 5.0
    """A grant that no executor has bound within this many seconds ends."""
    version: int = 1
    """Counts the changes, from 1."""


class WaitQueue:
    """Requests in ticket order.

    Appending, removing and finding the head are O(1); putting one back by its ticket, after a reconnection, is
    O(log n) in the number of those that came back.
    """

    def __init__(self) -> None:
        self._fresh: OrderedDict[Request, None] = OrderedDict()
        """Appended, so in ticket order."""
        self._returned: dict[Request, None] = {}
        """Put back; `_heap` orders them, and may hold stale entries."""
        self._heap: list[tuple[int, int, int, Request]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._fresh) + len(self._returned)

    def __iter__(self) -> Iterator[Request]:
        """In ticket order; O(n log n)."""
        return iter(sorted([*self._fresh, *self._returned], key=lambda request: request.ticket))

    def append(self, request: Request) -> None:
        """Adds a request whose ticket is higher than all that were ever appended."""
        self._fresh[request] = None

    def put_back(self, request: Request) -> None:
        """Adds a request by its ticket."""
        self._count += 1
        self._returned[request] = None
        heapq.heappush(self._heap, (*request.ticket, self._count, request))
        if len(self._heap) > 2 * len(self._returned) + _SLACK:
            self._heap = [entry for entry in self._heap if entry[3] in self._returned]
            heapq.heapify(self._heap)

    def remove(self, request: Request) -> None:
        """Takes a request out, wherever it stands; nothing happens when it is not here."""
        if request in self._fresh:
            del self._fresh[request]
        else:
            self._returned.pop(request, None)

    def head(self) -> Request | None:
        """The request with the lowest ticket, or None."""
        fresh = next(iter(self._fresh)) if self._fresh else None
        if not self._returned:
            return fresh
        while self._heap[0][3] not in self._returned:
            heapq.heappop(self._heap)
        back = self._heap[0][3]
        return back if fresh is None or back.ticket < fresh.ticket else fresh


class Bucket:
    """A record of what is in use and what waits: `LimiterCore` alone changes it."""

    __slots__ = (
        "bound",
        "cancelled_total",
        "granted_total",
        "held",
        "limits",
        "meter",
        "outcomes",
        "queue",
        "rejected_total",
        "released_total",
        "revoked_total",
        "waiting",
    )

    def __init__(self, limits: BucketLimits, now: float) -> None:
        self.limits = limits
        self.queue = WaitQueue()
        """Those that can be granted: their sessions are connected."""
        self.waiting = 0
        """All that wait, those of disconnected sessions included."""
        self.held = 0
        self.bound = 0
        self.meter = GrantMeter(now)
        self.granted_total = 0
        self.released_total = 0
        self.revoked_total = 0
        self.rejected_total = 0
        self.cancelled_total = 0
        self.outcomes: dict[ReleaseOutcome, int] = dict.fromkeys(ReleaseOutcome, 0)

    @property
    def free(self) -> int:
        """Tokens that can be granted now; 0 while more are held than a lowered limit allows."""
        return max(0, self.limits.max_in_flight - self.held)

    def retry_after(self, now: float) -> float:
        """Seconds after which a full queue should have drained, from the recent rate of grants."""
        rate = self.meter.estimate(now)
        return min(60.0, max(0.1, self.waiting / rate)) if rate > 0 else 1.0
