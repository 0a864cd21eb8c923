"""Who runs now and who waits: a fixed number of slots, a bounded queue, shares of both for each tenant.

A request enters when it arrives. It may start once it is eligible (a request without a lease is not, until the limiter
has granted it one), and once the memory that it may use is free: of requests that ask for much, the one whose turn it
is waits for it, and nobody passes it meanwhile. Bytes that a session holds between its cells are free for these alone.
A free slot goes to the tenant that has the fewest for its weight, in turns where several have as few, and among its
eligible requests to the one that entered first. Where the queue is full, a tenant below its share of it gets a place
all the same: that of the newest request of whoever has borrowed most. Whoever leaves, for whatever reason, is gone from
every count. What runs is never ended for another tenant's sake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from executor_service.errors import Overloaded
from executor_service.runs.shares import Weights, bound, lender
from executor_service.v1 import executor_pb2 as pb

_RECENT = 0.1
"""Weight of the newest duration in the running mean that the advice on retrying is made of."""
_ADVICE_RANGE_S = (0.05, 30.0)


class QueueFull(Overloaded):
    """The request has no place in the queue, or lost it to another tenant. `retry_after_s` is an estimate."""

    subject = "executor:queue"


def _no_word(refusal: QueueFull) -> None:
    """Nobody waits for the place."""


@dataclass(eq=False, slots=True)
class Memory:
    """Memory that requests use: one alone, or several together, those of a session and its branches. Theirs need not be
    free while none of them runs."""

    most: int
    """Bytes that they may use."""
    kept: int = 0
    """Bytes that are held while none of them runs."""
    running: int = 0
    """Number of them that run."""

    @property
    def needed(self) -> int:
        """Bytes that have to be free for one more of them."""
        return 0 if self.running else self.most - self.kept


@dataclass(eq=False, slots=True)
class Place:
    """The place of one request. `started` is set when it has a slot. `gives_way` is called when another tenant has got
    its place in the queue."""

    number: int
    tenant: str
    entered_at: float
    eligible: bool
    memory: Memory
    """Memory that it uses, alone or with others."""
    gives_way: Callable[[QueueFull], object] = _no_word
    started: asyncio.Event = field(default_factory=asyncio.Event)
    started_at: float = 0.0
    left: bool = False


@dataclass(eq=False, slots=True)
class _Line:
    """The requests of one tenant."""

    weight: float
    turn: float
    """When it is its turn, in turns of a tenant of weight 1."""
    waiting: dict[Place, None] = field(default_factory=dict)
    running: int = 0

    def first(self) -> Place | None:
        """The one that may start before its others."""
        return next((place for place in self.waiting if place.eligible), None)


class Admission:
    """`weights`: those of tenants whose share is not that of all others. `max_bytes`: memory for all that runs; a
    request that asks for more runs alone."""

    def __init__(
        self, *, max_running: int, max_queued: int, weights: Weights | None = None, max_bytes: int = 1 << 62
    ) -> None:
        self._max_running = max_running
        self._max_bytes = max_bytes
        self._bytes = self._kept = 0
        """Bytes that the running requests may use, and that are held where none runs."""
        self._blocked = False
        """True if slots are free, but the request whose turn it is waits for memory."""
        self._max_queued = max_queued
        self._weights = weights or {}
        self._free = max_running
        self._lines: dict[str, _Line] = {}
        """Lines of the tenants that have waiting or running requests."""
        self._queued = 0
        self._entered = 0
        self._turn = 0.0
        """Turn of the tenant whose request started last."""
        self._mean_s = 1.0

    def has_room(self, memory: Memory | None = None) -> bool:
        """Says whether a request with such memory that becomes eligible now starts at once: if so, no request that may
        start is waiting."""
        return self._free > 0 and not self._blocked and self._fits(memory or Memory(0))

    def enter(self, now: float, *, eligible: bool, tenant: str = "", memory: Memory | None = None) -> Place:
        """Takes a request in, which may start at once; another one may lose its place for it. Raises QueueFull."""
        if self._queued >= self._max_queued and not (eligible and self.has_room(memory)):
            self._make_room(tenant)
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = _Line(self._weights.get(tenant, 1.0), self._turn)
        self._entered += 1
        place = Place(self._entered, tenant, now, eligible, memory or Memory(0))
        line.waiting[place] = None
        self._queued += 1
        self._start(now)
        return place

    def eligible(self, place: Place, now: float) -> None:
        """It may start from now on. Without effect when it has left."""
        place.eligible = True
        self._start(now)

    def leave(self, place: Place, now: float) -> None:
        """It has ended or gave up, and another one starts in its stead. Idempotent."""
        if place.left:
            return
        place.left = True
        place.gives_way = _no_word  # which may keep its request, and that this place
        line = self._lines[place.tenant]
        if place.started.is_set():
            line.running -= 1
            self._free += 1
            self._give_back(place.memory)
            self._mean_s += _RECENT * (now - place.started_at - self._mean_s)
        else:
            del line.waiting[place]
            self._queued -= 1
        if not (line.waiting or line.running):
            del self._lines[place.tenant]
        self._start(now)

    def keep(self, memory: Memory, size: int, now: float) -> None:
        """So many bytes are held from now on while none of those who share this memory runs."""
        size = min(size, memory.most)
        if not memory.running:
            self._kept += size - memory.kept
        memory.kept = size
        self._start(now)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of requests that run, that wait, and that may run."""
        return self._max_running - self._free, self._queued, self._max_running

    def statistics(self, now: float) -> pb.GetStatusResponse:
        """The part of GetStatus that is about slots, queue and memory."""
        oldest = min(
            (next(iter(line.waiting)).entered_at for line in self._lines.values() if line.waiting), default=now
        )
        running, queued, max_running = self.counts
        return pb.GetStatusResponse(
            max_running=max_running,
            running=running,
            max_queued=self._max_queued,
            queued=queued,
            oldest_wait_s=now - oldest,
            program_memory_bytes=self._max_bytes,
            running_memory_bytes=self._bytes,
            session_memory_bytes=self._kept,
        )

    def _fits(self, memory: Memory) -> bool:
        return self._bytes + self._kept + memory.needed <= self._max_bytes or self._free == self._max_running

    def _take(self, memory: Memory) -> None:
        if not memory.running:
            self._bytes += memory.most
            self._kept -= memory.kept
        memory.running += 1

    def _give_back(self, memory: Memory) -> None:
        memory.running -= 1
        if not memory.running:
            self._bytes -= memory.most
            self._kept += memory.kept

    def _make_room(self, tenant: str) -> None:
        """Takes a place from whoever has borrowed most. Raises QueueFull where nobody has borrowed."""
        used = {each: len(line.waiting) for each, line in self._lines.items()}
        low, high = _ADVICE_RANGE_S
        advice = min(max(self._mean_s * (self._queued + 1) / self._max_running, low), high)
        full = f"{self._max_queued} requests wait already (max_queued), "
        other = lender(tenant, used, self._weights)
        if other is None:
            raise QueueFull(full + bound(tenant, used, self._max_queued, self._weights), advice)
        used.setdefault(tenant, 1)  # whoever wants a place has a share of them
        line = self._lines[other]
        newest = next(reversed(line.waiting))
        del line.waiting[newest]
        newest.left = True
        self._queued -= 1
        if not (line.waiting or line.running):
            del self._lines[other]
        lost = bound(other, used, self._max_queued, self._weights)
        newest.gives_way(QueueFull(f"{full}{lost}: this one gave way to another tenant's", advice))

    def _start(self, now: float) -> None:
        self._blocked = False
        while self._free and self._queued and (place := self._next()) is not None:
            if not self._fits(place.memory):
                self._blocked = True
                return
            line = self._lines[place.tenant]
            del line.waiting[place]
            line.running += 1
            self._turn = max(self._turn, line.turn)
            line.turn = self._turn + 1 / line.weight
            self._queued -= 1
            self._free -= 1
            self._take(place.memory)
            place.started_at = now
            place.started.set()

    def _next(self) -> Place | None:
        """The first of the tenant that has the fewest slots for its weight; of several, whose turn it is."""
        if len(self._lines) == 1:
            return next(iter(self._lines.values())).first()
        found = [(line, place) for line in self._lines.values() if (place := line.first())]
        if not found:
            return None
        return min(found, key=lambda each: (each[0].running / each[0].weight, each[0].turn, each[1].number))[1]
