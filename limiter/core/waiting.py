"""Requests that wait, in the order in which they will be granted: by ticket, or round robin over tenants.

Invariants: what was taken out is never a head; among the requests of one tenant the order is that of their tickets.
Removing and finding the head are O(1) in either order; putting one back by its ticket, after a reconnection, is
O(log n) in the number of those that came back.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from limiter.core.lease import Request

_SLACK = 64
"""Stale heap entries that are always tolerated."""


class Queue(Protocol):
    """Requests in the order in which they will be granted."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """In order; lazy, so that the first few are cheap."""
        ...

    def append(self, request: Request) -> int:
        """Adds a request whose ticket is higher than all that were ever appended; returns how many are before it."""
        ...

    def put_back(self, request: Request) -> None:
        """Adds a request by its ticket; nothing happens when it is here."""
        ...

    def remove(self, request: Request) -> None:
        """Takes a request out, wherever it stands; nothing happens when it is not here."""
        ...

    def pop(self, request: Request) -> None:
        """Takes the head out because it is granted: the turn goes on."""
        ...

    def head(self) -> Request | None:
        """The request that is next, or None."""
        ...

    def position(self, request: Request) -> int:
        """Number of requests before it; O(n)."""
        ...


class WaitQueue:
    """By ticket, whoever asks."""

    __slots__ = ("_count", "_fresh", "_heap", "_returned")

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
        if not self._returned:
            return iter(self._fresh)
        return heapq.merge(self._in_heap(), self._fresh, key=lambda request: request.ticket)

    def _in_heap(self) -> Iterator[Request]:
        """Requests put back, in order: walks the heap from its root, and only as far as the caller asks."""
        heap, seen = self._heap, set()
        front = [(heap[0], 0)] if heap else []
        while front:
            entry, index = heapq.heappop(front)
            if entry[3] in self._returned and entry[3] not in seen:
                seen.add(entry[3])
                yield entry[3]
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(heap):
                    heapq.heappush(front, (heap[child], child))

    def append(self, request: Request) -> int:
        before = len(self)
        self._fresh[request] = None
        return before

    def put_back(self, request: Request) -> None:
        if request in self._fresh or request in self._returned:
            return
        self._count += 1
        self._returned[request] = None
        heapq.heappush(self._heap, (*request.ticket, self._count, request))
        if len(self._heap) > 2 * len(self._returned) + _SLACK:
            self._heap = [entry for entry in self._heap if entry[3] in self._returned]
            heapq.heapify(self._heap)

    def remove(self, request: Request) -> None:
        if request in self._fresh:
            del self._fresh[request]
        else:
            self._returned.pop(request, None)

    pop = remove

    def head(self) -> Request | None:
        fresh = next(iter(self._fresh)) if self._fresh else None
        if not self._returned:
            return fresh
        while self._heap[0][3] not in self._returned:
            heapq.heappop(self._heap)
        back = self._heap[0][3]
        return back if fresh is None or back.ticket < fresh.ticket else fresh

    def position(self, request: Request) -> int:
        return sum(1 for other in self if other.ticket < request.ticket)


class FairQueue:
    """Round robin over the tenants that have requests here, by ticket within a tenant.

    A tenant that comes to wait joins at the end of the round; one that was granted goes there. The tenant whose turn it
    is keeps it until it is granted or has nothing left: a heavy head is never passed.
    """

    __slots__ = ("_count", "_round")

    def __init__(self) -> None:
        self._round: OrderedDict[str, WaitQueue] = OrderedDict()
        """By tenant, the one whose turn it is first; none is empty."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        lines = [iter(queue) for queue in self._round.values()]
        while lines:
            left = []
            for line in lines:
                request = next(line, None)
                if request is not None:
                    yield request
                    left.append(line)
            lines = left

    def append(self, request: Request) -> int:
        """O(number of tenants)."""
        turn = self._line(request.tenant).append(request)
        self._count += 1
        before, joined = turn, False
        for tenant, queue in self._round.items():
            if tenant == request.tenant:
                joined = True
            else:
                before += min(len(queue), turn if joined else turn + 1)
        return before

    def put_back(self, request: Request) -> None:
        line = self._line(request.tenant)
        before = len(line)
        line.put_back(request)
        self._count += len(line) - before

    def remove(self, request: Request) -> None:
        queue = self._round.get(request.tenant)
        if queue is None:
            return
        before = len(queue)
        queue.remove(request)
        self._count -= before - len(queue)
        if not len(queue):
            del self._round[request.tenant]

    def pop(self, request: Request) -> None:
        self.remove(request)
        if request.tenant in self._round:
            self._round.move_to_end(request.tenant)

    def head(self) -> Request | None:
        return next(iter(self._round.values())).head() if self._round else None

    def position(self, request: Request) -> int:
        return next((number for number, other in enumerate(self) if other is request), self._count)

    def _line(self, tenant: str) -> WaitQueue:
        queue = self._round.get(tenant)
        if queue is None:
            queue = self._round[tenant] = WaitQueue()
        return queue
