"""A term of leading: who may grant, for how long, and what a new leader knows of the one before.

Two limiters must never grant from the same limit. A term is numbered by an epoch that is higher than all before it;
leases of other epochs are not bound. A leader acts only while its clock says that nobody else can lead (`lead_until`),
and keeps the roster, the list of executors whose programs may be running, where the next leader finds it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from limiter.core.recovery import Member
from limiter.leadership.leash import Leash

__all__ = [
    "Alone",
    "Leadership",
    "LeadershipLost",
    "Member",
    "RosterNotKept",
    "Term",
    "decode_key",
    "decode_roster",
    "encode_roster",
    "wall_epoch",
]


@dataclass(frozen=True, slots=True)
class Term:
    """A time in which one process leads."""

    epoch: int
    """Higher than that of every term before it, from 1."""
    roster: tuple[Member, ...] | None
    """Executors that the leader before let in and whose end it had not seen. Empty: there were none, and nothing
    runs. None: nobody knows, so that the longest time that a program can outlive a leader has to pass."""
    follows: bool = True
    """True if there may have been a leader before, whose clients come back and are waited for."""
    key: bytes = field(default=b"", repr=False)
    """Proves what leaders give; each has that of the one before."""


class LeadershipLost(Exception):
    """Another process leads, or may; the text says why. Whoever gets it must stop granting."""


class RosterNotKept(Exception):
    """The roster could not be kept; the text says why. Who leads goes on leading, with the roster that was kept before:
    nobody else can join, and whoever has left is waited for by the next leader."""


class Leadership(Protocol):
    """A way to come to lead. One instance, one process, one term: after losing it the process starts afresh."""

    @property
    def leader(self) -> str:
        """Who leads, as far as is known, for messages to people and clients; empty: nobody knows."""
        ...

    @property
    def keeps_roster(self) -> bool:
        """True if `store()` keeps anything. If not, executors need not wait for it."""
        ...

    @property
    def lead_until(self) -> float:
        """Until when nobody else can lead, on the clock that it was given; infinite where that does not end while the
        process lives. Counted from the sending of the last renewal that succeeded."""
        ...

    async def campaign(self) -> Term:
        """Waits until this process leads. LeadershipLost when it never can."""
        ...

    async def hold(self) -> None:
        """Renews for as long as it can; never returns otherwise than by LeadershipLost or cancellation. `lead_until`
        grows meanwhile."""
        ...

    async def store(self, roster: Sequence[Member]) -> None:
        """Keeps the whole roster for the next leader; returns when it is safe. RosterNotKept when that fails or takes
        too long, and can be tried again; LeadershipLost when somebody else has written since. One call at a time."""
        ...

    async def resign(self) -> None:
        """Lets somebody else lead at once. Called when nothing is granted any more. Idempotent; bounded in time."""
        ...


class Alone:
    """Leads without asking anybody: one limiter, by the operator's word (`leader=none`).

    Nothing is kept, so a limiter that was restarted does not know who was running, and waits for the longest time that
    a program can have outlived its predecessor. `fresh`: the caller knows that no executor has worked for an earlier
    limiter. `leash`: for how long another process lets it lead; None: for its life.
    """

    keeps_roster = False

    def __init__(self, *, name: str = "", fresh: bool = False, leash: Leash | None = None, key: bytes = b"") -> None:
        """`key`: as in `Term`; nothing keeps it, so it has to be the same after a restart."""
        self.leader = name
        self._fresh = fresh
        self._leash = leash
        self._key = key

    @property
    def lead_until(self) -> float:
        """End that its leash says; without one it leads for its life."""
        return self._leash.until if self._leash is not None else float("inf")

    async def campaign(self) -> Term:
        """At once. The epoch is the wall clock in milliseconds: it grows over restarts unless the clock is set back."""
        return Term(wall_epoch(), () if self._fresh else None, not self._fresh, self._key)

    async def hold(self) -> None:
        """Until it is cancelled."""
        await asyncio.Event().wait()

    async def store(self, roster: Sequence[Member]) -> None:
        """Keeps nothing."""

    async def resign(self) -> None:
        """There is nobody to tell."""


def wall_epoch() -> int:
    """Least epoch of a term that begins now: the wall clock in milliseconds.

    A term always has a higher epoch than the one before it on its record. This makes it higher too where that record
    was lost, or where the limiter before kept none, unless the clock was set back in between.
    """
    return max(1, time.time_ns() // 1_000_000)


KEY_BYTES = 32


def decode_key(value: object) -> bytes:
    """A key that was kept as hexadecimal digits; ValueError says what is wrong, not what it is."""
    if not (isinstance(value, str) and len(value) == 2 * KEY_BYTES):
        raise ValueError(f"key must be {2 * KEY_BYTES} hexadecimal digits")
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise ValueError(f"key must be {2 * KEY_BYTES} hexadecimal digits") from None


def encode_roster(roster: Sequence[Member] | None) -> list[list[str]] | None:
    """`[[session_id, name], ...]`; None stays None."""
    return None if roster is None else [[member.session_id, member.name] for member in roster]


def decode_roster(value: object) -> tuple[Member, ...] | None:
    """Reads what `encode_roster` wrote; ValueError says what is wrong."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError(f"roster is {value!r}"[:80] + ", must be a list or null")
    members = []
    for index, entry in enumerate(value):
        if not (isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)):
            raise ValueError(f"roster[{index}] is {entry!r}"[:80] + ", must be a session and a name")
        members.append(Member(*entry))
    return tuple(members)
