"""Which workspaces are kept, and which go: bounded bytes, idle time, least recently used first. Whose is made next.

Invariants: what is held is never removed, whatever the bound or its age; a workspace that has no room is refused before
anything is removed for it; the bytes of what is in the table never exceed the bound. A tenant without a preparation in
hand waits for no tenant that has one, as long as there are places for so many.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from executor_service.errors import Overloaded
from executor_service.v1 import executor_pb2 as pb

_MOST_EACH = 2
"""Preparations of a tenant at once."""
_MOST_WAITING = 1000
"""Preparations of a tenant that wait."""
_WAITING_BYTES = 256 << 20
"""Most bytes of a tenant's waiting bundles, which are in memory."""
_RETRY_S = 30.0
"""Advice to one for whose workspace there is no room, or no turn."""


class TooManyPreparations(Overloaded):
    """The tenant has as many preparations waiting as it may."""

    subject = "executor:preparations"

    def __init__(self) -> None:
        most = f"{_MOST_WAITING} of them, or {_WAITING_BYTES} bytes of bundles"
        super().__init__(f"preparations of this tenant wait already, {most}", _RETRY_S)


class StoreFull(Overloaded):
    """The workspaces in use leave no room for one more."""

    subject = "executor:workspace_bytes"

    def __init__(self, needed: int, held: int, most: int) -> None:
        full = f"the workspace needs {needed} bytes; those in use hold {held} of {most} (workspace_bytes)"
        super().__init__(full, _RETRY_S)


@dataclass(slots=True)
class _Entry:
    size: int
    idle_ttl_s: float
    used_at: float
    holders: int = 0


class WorkspaceTable:
    """`most_bytes` bounds all workspaces together."""

    def __init__(self, *, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """The least recently used first."""
        self._bytes = 0
        self._evicted = self._expired = 0

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def add(self, name: str, size: int, idle_ttl_s: float, now: float) -> list[str]:
        """Takes a new workspace in. Returns those that have to go for it. Raises StoreFull."""
        assert name not in self._entries
        held = sum(entry.size for entry in self._entries.values() if entry.holders)
        if held + size > self._most_bytes:
            raise StoreFull(size, held, self._most_bytes)
        gone = []
        for other, entry in list(self._entries.items()):
            if self._bytes + size <= self._most_bytes:
                break
            if not entry.holders:
                gone.append(other)
                self._remove(other)
        self._entries[name] = _Entry(size, idle_ttl_s, now)
        self._bytes += size
        self._evicted += len(gone)
        return gone

    def asked_again(self, name: str, idle_ttl_s: float, now: float) -> None:
        """Somebody prepares a workspace that is there: the longer of the two times holds from now on."""
        entry = self._entries[name]
        entry.idle_ttl_s = max(entry.idle_ttl_s, idle_ttl_s)
        self._used(name, now)

    def hold(self, name: str, now: float) -> None:
        """Something uses it until `release`. KeyError when it is not there."""
        self._entries[name].holders += 1
        self._used(name, now)

    def release(self, name: str, now: float) -> None:
        entry = self._entries[name]
        assert entry.holders > 0
        entry.holders -= 1
        self._used(name, now)

    def expire(self, now: float) -> list[str]:
        """Forgets what was unused for longer than its time, and returns it."""
        gone = [
            name
            for name, entry in self._entries.items()
            if not entry.holders and now - entry.used_at >= entry.idle_ttl_s
        ]
        for name in gone:
            self._remove(name)
        self._expired += len(gone)
        return gone

    def drop(self, name: str) -> None:
        """Forgets a workspace that nothing holds."""
        assert not self._entries[name].holders
        self._remove(name)

    def statistics(self) -> pb.WorkspaceStatus:
        """For GetStatus, as far as it is known here."""
        return pb.WorkspaceStatus(
            entries=len(self._entries),
            in_use=sum(1 for entry in self._entries.values() if entry.holders),
            bytes=self._bytes,
            max_bytes=self._most_bytes,
            evicted_total=self._evicted,
            expired_total=self._expired,
        )

    def _used(self, name: str, now: float) -> None:
        self._entries[name].used_at = now
        self._entries.move_to_end(name)

    def _remove(self, name: str) -> None:
        self._bytes -= self._entries.pop(name).size


@dataclass(eq=False, slots=True)
class _Waiting:
    tenant: str
    size: int
    turn: asyncio.Future[None]


class Places:
    """For preparations of many tenants: the next of `most` places is for who has least, among equals for who came
    first. Who has one gets another while fewer than `shared` are taken."""

    def __init__(self, *, most: int, shared: int) -> None:
        self._most = most
        self._shared = shared
        self._taken: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []

    @asynccontextmanager
    async def take(self, tenant: str, size: int) -> AsyncIterator[None]:
        """A place for a block, for something that holds `size` bytes while it waits. Raises TooManyPreparations."""
        mine = [waiting.size for waiting in self._waiting if waiting.tenant == tenant]
        if len(mine) >= _MOST_WAITING or sum(mine) + size > _WAITING_BYTES:
            raise TooManyPreparations
        waiting = _Waiting(tenant, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            self._give()
            await waiting.turn
            yield
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                self._taken -= Counter([tenant])  # forgets who has none
            self._give()

    def _give(self) -> None:
        while able := [waiting for waiting in self._waiting if self._may(waiting.tenant)]:
            first = min(able, key=lambda waiting: self._taken[waiting.tenant])
            self._waiting.remove(first)
            self._taken[first.tenant] += 1
            if not first.turn.done():  # or it is given up, and gives the place back at once
                first.turn.set_result(None)

    def _may(self, tenant: str) -> bool:
        mine, taken = self._taken[tenant], self._taken.total()
        return taken < (self._shared if mine else self._most) and mine < _MOST_EACH
