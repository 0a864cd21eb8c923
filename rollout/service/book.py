"""Keeps track of every trajectory of the service: which waits, runs, has ended, and whose turn it is. Pure.

Invariants: at most `concurrency` run; tenants take turns, and the trajectories of one begin in the order in which they
came; what has ended is given to its tenant's stream in the order in which it did, each at most once a stream, and stays
until it is acknowledged or cancelled; a tenant never has more than `max_trajectories` here.

It knows neither tasks nor results, which are on disk.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MAX_REPLACED = 64
"""Names of replaced streams that are remembered of a tenant: each is of a trainer that was started and ended."""
MAX_TENANTS = 64
"""Tenants that have trajectories here at once: where no token says who a caller is, anybody may invent names."""


class Place(StrEnum):
    """Places of a trajectory."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    """It waits to be acknowledged."""


class StreamReplaced(Exception):
    """Another stream took the place of this one before."""


class BookFull(Exception):
    """There is no room for these trajectories. `subject` names the bound."""

    def __init__(self, subject: str, text: str) -> None:
        super().__init__(text)
        self.subject = subject


@dataclass(slots=True)
class BookEntry:
    """A trajectory. `number` orders all of them, and is never used again."""

    number: int
    tenant: str
    id: str
    place: Place = Place.QUEUED
    stale: int = 0
    """Number of times that it ended and was too stale."""


@dataclass(slots=True, eq=False)
class Delivery:
    """A tenant's stream: ended trajectories that it has yet to get, and those that it got and has not acknowledged."""

    tenant: str
    name: str
    """Name over reconnections; empty: none."""
    most: int
    """Trajectories that it may have got and not acknowledged."""
    pending: deque[BookEntry] = field(default_factory=deque)
    given: set[int] = field(default_factory=set)
    """Numbers."""


@dataclass(frozen=True, slots=True)
class TenantCounts:
    """A tenant's trajectories."""

    queued: int
    running: int
    ended: int
    streaming: bool


@dataclass(slots=True)
class _Tenant:
    queue: OrderedDict[int, BookEntry] = field(default_factory=OrderedDict)
    """Entries that wait."""
    entries: dict[str, BookEntry] = field(default_factory=dict)
    """By id, all that are here."""
    ended: dict[int, BookEntry] = field(default_factory=dict)
    """In the order in which they ended."""
    running: int = 0
    reserved: int = 0
    delivery: Delivery | None = None
    replaced: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_REPLACED))
    """Names of streams that others took the place of, the oldest first."""

    @property
    def idle(self) -> bool:
        """Nothing of it is here."""
        return not (self.entries or self.running or self.reserved or self.delivery)


class TrajectoryBook:
    """`reserve` and `add` what comes, `begin` what is due, say what has `ended`, `give` it away."""

    def __init__(self, *, concurrency: int, max_trajectories: int, max_tenants: int = MAX_TENANTS) -> None:
        self._concurrency = concurrency
        self._most = max_trajectories
        self._most_tenants = max_tenants
        self._tenants: dict[str, _Tenant] = {}
        self._turns: deque[str] = deque()
        """Tenants with a queue, the next one first; some have none any more."""
        self._running: dict[int, BookEntry] = {}

    @property
    def running(self) -> Mapping[int, BookEntry]:
        """By number."""
        return self._running

    def counts(self) -> dict[str, TenantCounts]:
        """Counts of each tenant that has trajectories here, by name."""
        found = {}
        for name, tenant in sorted(self._tenants.items()):
            found[name] = TenantCounts(
                len(tenant.queue), tenant.running, len(tenant.ended), tenant.delivery is not None
            )
        return found

    def reserve(self, tenant: str, count: int) -> None:
        """Keeps room for `count` of a tenant until `release`. Raises BookFull."""
        known = self._tenants.get(tenant)
        if known is None and len(self._tenants) >= self._most_tenants:
            raise BookFull("tenants", f"{len(self._tenants)} tenants have trajectories here, which is the most")
        here = 0 if known is None else len(known.entries) + known.reserved
        if here + count > self._most:
            raise BookFull(
                f"tenant:{tenant}", f"{here} trajectories are here, of at most {self._most}: {count} more have no room"
            )
        self._tenant(tenant).reserved += count

    def release(self, tenant: str, count: int) -> None:
        """Gives back what was reserved."""
        self._tenant(tenant).reserved -= count
        self._tidy(tenant)

    def add(self, entries: Iterable[BookEntry]) -> None:
        """Takes trajectories that wait, or, after a restart, that have ended. Their numbers are above all others."""
        for entry in entries:
            tenant = self._tenant(entry.tenant)
            tenant.entries[entry.id] = entry
            if entry.place is Place.ENDED:
                self._end(tenant, entry)
                continue
            entry.place = Place.QUEUED
            tenant.queue[entry.number] = entry
            if entry.tenant not in self._turns:
                self._turns.append(entry.tenant)

    def begin(self) -> BookEntry | None:
        """The next one to be played, which runs from now on; None: there is none, or no place."""
        while self._turns and len(self._running) < self._concurrency:
            name = self._turns.popleft()
            tenant = self._tenants.get(name)
            if tenant is None or not tenant.queue:
                continue  # they have been cancelled
            _, entry = tenant.queue.popitem(last=False)
            if tenant.queue:
                self._turns.append(name)
            entry.place = Place.RUNNING
            tenant.running += 1
            self._running[entry.number] = entry
            return entry
        return None

    def ended(self, number: int) -> None:
        """A running one has ended, and what it came to is kept."""
        entry = self._running.pop(number)
        tenant = self._tenants[entry.tenant]
        tenant.running -= 1
        if tenant.entries.get(entry.id) is entry:
            self._end(tenant, entry)
        self._tidy(entry.tenant)

    def open(self, tenant: str, most: int, name: str = "") -> Delivery:
        """The tenant's stream from now on, in place of the one it had. It gets everything that is not acknowledged.
        Raises StreamReplaced for one that comes again and whose place another one took."""
        known = self._tenant(tenant)
        if name and name in known.replaced:
            raise StreamReplaced
        before = known.delivery
        if before is not None and before.name and before.name != name:
            known.replaced.append(before.name)
        known.delivery = Delivery(tenant, name, most, deque(known.ended.values()))
        return known.delivery

    def close(self, delivery: Delivery) -> None:
        """Ends a stream, unless another one took its place."""
        if self.streams(delivery):
            self._tenants[delivery.tenant].delivery = None
            self._tidy(delivery.tenant)

    def streams(self, delivery: Delivery) -> bool:
        """Says whether it is its tenant's stream still."""
        known = self._tenants.get(delivery.tenant)
        return known is not None and known.delivery is delivery

    def give(self, delivery: Delivery) -> BookEntry | None:
        """The next one for a stream; None: there is none, or it has as many as it may have."""
        while delivery.pending and len(delivery.given) < delivery.most:
            entry = delivery.pending.popleft()
            if entry.number in self._tenants[delivery.tenant].ended:
                delivery.given.add(entry.number)
                return entry
        return None

    def keeps(self, entry: BookEntry) -> bool:
        """Says whether one that has ended is here still: neither acknowledged nor cancelled, nor played again."""
        tenant = self._tenants.get(entry.tenant)
        return tenant is not None and entry.number in tenant.ended

    def requeue(self, entry: BookEntry) -> bool:
        """One that has ended is to be played again, before those of its tenant that came later; False: it was
        acknowledged or cancelled meanwhile."""
        if not self.keeps(entry):
            return False
        tenant = self._tenants[entry.tenant]
        del tenant.ended[entry.number]
        if tenant.delivery is not None:  # which may be another one than that for which it is too stale
            tenant.delivery.given.discard(entry.number)
            with contextlib.suppress(ValueError):
                tenant.delivery.pending.remove(entry)
        entry.stale += 1
        entry.place = Place.QUEUED
        self.add([entry])
        tenant.queue = OrderedDict(sorted(tenant.queue.items()))
        return True

    def acknowledge(self, tenant: str, ids: Iterable[str]) -> list[int]:
        """Lets go of those that have ended; their numbers."""
        return [self._drop(entry) for entry in self._found(tenant, ids) if entry.place is Place.ENDED]

    def cancel(self, tenant: str, ids: Iterable[str]) -> list[int]:
        """Lets go of those with these ids, wherever they are; their numbers. Those that run keep their place until they
        have `ended`."""
        return [self._drop(entry) for entry in self._found(tenant, ids)]

    def _found(self, tenant: str, ids: Iterable[str]) -> list[BookEntry]:
        known = self._tenants.get(tenant)
        return [] if known is None else [known.entries[each] for each in dict.fromkeys(ids) if each in known.entries]

    def _end(self, tenant: _Tenant, entry: BookEntry) -> None:
        entry.place = Place.ENDED
        tenant.ended[entry.number] = entry
        if tenant.delivery is not None:
            tenant.delivery.pending.append(entry)

    def _drop(self, entry: BookEntry) -> int:
        tenant = self._tenants[entry.tenant]
        del tenant.entries[entry.id]
        tenant.queue.pop(entry.number, None)
        tenant.ended.pop(entry.number, None)
        if tenant.delivery is not None:
            tenant.delivery.given.discard(entry.number)
        self._tidy(entry.tenant)
        return entry.number

    def _tenant(self, name: str) -> _Tenant:
        return self._tenants.setdefault(name, _Tenant())

    def _tidy(self, name: str) -> None:
        """Forgets a tenant of whom nothing is here."""
        tenant = self._tenants[name]
        if tenant.idle:
            del self._tenants[name]
