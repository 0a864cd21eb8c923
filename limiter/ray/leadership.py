"""Leading within a Ray cluster: each incarnation of the actor claims the next epoch in the cluster's store.

Ray starts a lost actor again, and may do so while the old process still lives behind a partition. So the old one leads
only until the sending of its last look at the store plus the lease, and a new one waits for as long after its claim,
unless it sees that the old process, on the same machine, is gone. Each keeps its roster under its own epoch, and looks
for a later claim after each writing, so that the next one finds every executor that was let in.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Protocol

from fairbox.clock import Clock
from limiter.core.timing import CLOCK_RATE_ERROR
from limiter.leadership import LeadershipLost, Member, Term

__all__ = ["ClusterLeadership", "Store"]

_LOOKS_PER_LEASE = 5


class Store(Protocol):
    """What is needed of the cluster's store."""

    async def get(self, key: str) -> bytes | None:
        """The value, or None."""
        ...

    async def put(self, key: str, value: bytes) -> None:
        """Sets a value."""
        ...

    async def claim(self, key: str, value: bytes) -> bool:
        """Sets a value if there is none, atomically; whether there was none."""
        ...


class ClusterLeadership:
    """`Leadership` of one incarnation of the actor. `node` names the machine, uniquely within the cluster."""

    keeps_roster = True

    def __init__(self, store: Store, clock: Clock, *, node: str, lease: float) -> None:
        self.leader = node
        self.lead_until = float("-inf")
        self._store = store
        self._clock = clock
        self._lease = lease
        self._epoch = 0

    async def campaign(self) -> Term:
        """Claims the next epoch; whoever led before can't lead any more when it returns. What the store raises when it
        can't be reached; then this process has to end."""
        epoch = int(await self._store.get("last") or b"0") + 1
        me = f"{self.leader} {os.getpid()} {_started(os.getpid())}".encode()
        sent = self._clock.now()
        while not await self._store.claim(f"epoch.{epoch}", me):
            epoch += 1
            sent = self._clock.now()
        self._epoch = epoch
        await self._store.put("last", str(epoch).encode())  # only saves steps: the claims decide
        roster = await self._inherited()
        await self.store(roster)
        if epoch > 1 and not self._gone(await self._store.get(f"epoch.{epoch - 1}") or b""):
            await asyncio.sleep(self._lease * (1 + 2 * CLOCK_RATE_ERROR))
            sent = self._clock.now()
            await self._look()
        self.lead_until = sent + self._lease
        return Term(epoch, roster)

    async def hold(self) -> None:
        """Looks for a later claim, again and again."""
        while True:
            await asyncio.sleep(self._lease / _LOOKS_PER_LEASE)
            sent = self._clock.now()
            try:
                await self._look()
            except LeadershipLost:
                raise
            except Exception as error:
                if self._clock.now() >= self.lead_until:
                    raise LeadershipLost(f"the cluster's store can't be reached: {error!r}") from None
                continue
            if sent >= self.lead_until:
                raise LeadershipLost(f"the cluster's store was not read for {self._lease:.0f} s")
            self.lead_until = sent + self._lease

    async def store(self, roster: Sequence[Member]) -> None:
        """Keeps the roster under this epoch."""
        members = [[member.session_id, member.name] for member in roster]
        try:
            await self._store.put(f"roster.{self._epoch}", json.dumps(members).encode())
            await self._look()
        except LeadershipLost:
            raise
        except Exception as error:
            raise LeadershipLost(f"the roster can't be kept: {error!r}") from None

    async def resign(self) -> None:
        """Ray starts the next one; there is nobody to tell."""

    async def _inherited(self) -> tuple[Member, ...]:
        """The newest roster of an earlier epoch. One that ended before it kept its own has let nobody in."""
        for epoch in range(self._epoch - 1, 0, -1):
            if (kept := await self._store.get(f"roster.{epoch}")) is not None:
                return tuple(Member(session_id, name) for session_id, name in json.loads(kept))
        return ()

    async def _look(self) -> None:
        if await self._store.get(f"epoch.{self._epoch + 1}") is not None:
            raise LeadershipLost(f"epoch {self._epoch + 1} has begun elsewhere")

    def _gone(self, claim: bytes) -> bool:
        """Whether the process that made a claim has provably ended."""
        node, _, process = claim.decode().partition(" ")
        pid, _, started = process.partition(" ")
        return node == self.leader and started != _started(int(pid))


def _started(pid: int) -> str:
    """When the process started, in ticks since the boot; "" when there is none that can still act."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - pathlib adds nothing
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]
