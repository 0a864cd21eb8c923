"""Requests that wait, in the order in which they will be granted: by ticket, or round robin over tenants.

Invariants: what was taken out is never a head; among the requests of one tenant the order is that of their tickets.
Adding a request and finding the head are O(log n) at most, and O(1) for a request whose ticket is the highest.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from limiter.core.lease import Request

_SLACK = 64
"""Stale heap entries that are always tolerated."""


class Queue(Protocol):
    """Requests that wait, one of which is next."""

    def __bool__(self) -> bool: ...

    def __iter__(self) -> Iterator[Request]:
        """All of them, in no order."""
        ...

    def add(self, request: Request) -> None:
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


class WaitQueue:
    """By ticket, whoever asks."""

    __slots__ = ("_count", "_heap", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Request, int] = {}
        """Requests that are here, and the number of the entry of each in `_heap`; others there are stale."""
        self._heap: list[tuple[int, int, int, Request]] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    def add(self, request: Request) -> None:
        if request in self._waiting:
            return
        self._count += 1
        self._waiting[request] = self._count
        heapq.heappush(self._heap, (*request.ticket, self._count, request))
        if len(self._heap) > 2 * len(self._waiting) + _SLACK:
            self._heap = [entry for entry in self._heap if self._waiting.get(entry[3]) == entry[2]]
            heapq.heapify(self._heap)

    def remove(self, request: Request) -> None:
        self._waiting.pop(request, None)

    pop = remove

    def head(self) -> Request | None:
        if not self._waiting:
            return None
        while self._waiting.get(self._heap[0][3]) != self._heap[0][2]:
            heapq.heappop(self._heap)
        return self._heap[0][3]


class FairQueue:
    """Round robin over the tenants that have requests here, by ticket within a tenant.

    A tenant that comes to wait joins at the end of the round; one that was granted goes there. The tenant whose turn it
    is keeps it until it is granted or has nothing left: a heavy head is never passed.
    """

    __slots__ = ("_round",)

    def __init__(self) -> None:
        self._round: OrderedDict[str, WaitQueue] = OrderedDict()
        """By tenant, the one whose turn it is first; none is empty."""

    def __bool__(self) -> bool:
        return bool(self._round)

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(self._round.values())

    def add(self, request: Request) -> None:
        self._round.setdefault(request.tenant, WaitQueue()).add(request)

    def remove(self, request: Request) -> None:
        line = self._round.get(request.tenant)
        if line is not None:
            line.remove(request)
            if not line:
                del self._round[request.tenant]

    def pop(self, request: Request) -> None:
        self.remove(request)
        if request.tenant in self._round:
            self._round.move_to_end(request.tenant)

    def head(self) -> Request | None:
        return next(iter(self._round.values())).head() if self._round else None
