"""Who leads, as a pure state machine over one record: what was seen and when goes in, what to do next comes out.

No I/O, clock or tasks; `Elector` runs it. The rules:

- A follower takes over when the record has not changed for duration x 1.02 since it saw it change, at once when it was
  released, and at once when its holder has the follower's own identity, whose earlier process is then dead.
- Taking over is one write that replaces exactly what was read: it raises the epoch and carries the roster along.
- A leader renews four times in a duration. It leads until the sending of its last confirmed renewal plus
  duration x 0.98.
- After a write without an answer, a conflict, or the end of its time, a leader looks before it writes. What it then
  finds of its own epoch only itself can have written.

There is one record. Every write replaces it as a whole and names the version that it replaces, so of two that were
based on the same version one fails.

Invariants: with clocks that run within 1 % of true time, no two are ever before their `lead_until` at once; epochs
grow; a roster, once written, is in every later record until its leader replaces it. Every time is one of the
candidate's own clock: no wall clock, and no time in the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, TypeAlias

from limiter.core.limits import CLOCK_RATE_ERROR
from limiter.leadership.term import LeadershipLost, Member, Term

DURATION_S = 6.0
"""Seconds for which a limiter that was cut off can keep others from leading: short for those who wait, and yet several
attempts to renew, each with a second for its answer."""
RENEWALS = 4
"""Renewals in a duration: three can fail."""
_LOOKS = 8
"""Looks of a follower in a duration: a released record is taken within half of a renewal's time."""
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Record:
    """Content of the record."""

    holder: str
    """Identity of who leads; empty: it was released, and nobody does."""
    epoch: int
    """Epoch of the term, from 1. It grows with each term and never falls."""
    duration: float
    """For how long a renewal lets its holder lead, seconds."""
    renewal: str
    """Differs after each renewal; has no other meaning."""
    roster: tuple[Member, ...] | None
    """Executors whose programs may be running; None: nobody knows."""
    version: str = ""
    """Set by the store; differs after each write of anybody."""
    key: bytes = field(default=b"", repr=False)
    """That of all leaders; empty: none has made one yet."""


class Conflict(Exception):
    """The record is not the one that the write would have replaced. Nothing was written."""


class StoreUnavailable(Exception):
    """The store gave no answer; the text says why. A write may have happened, and may happen yet."""


class RosterRefused(StoreUnavailable):
    """The record would be too large with its roster. Nothing was written; one with the roster before it may be."""


class RecordStore(Protocol):
    """Keeps the record. Both calls may be cancelled at any time; a write that was cancelled may happen yet."""

    async def read(self) -> Record | None:
        """The record as it is after every write that ended before this call; None: there is none. Never an older one.
        StoreUnavailable."""
        ...

    async def write(self, record: Record, expected: str | None) -> Record:
        """Puts `record` in the place of the one with the version `expected` (None: there must be none) and returns it
        with its new version. Conflict, StoreUnavailable."""
        ...

    async def close(self) -> None:
        """Gives back what the calls have opened. Idempotent."""
        ...


class Role(StrEnum):
    """State of a candidate."""

    FOLLOWING = "following"
    """Somebody else leads, or nobody."""
    LEADING = "leading"
    """The last that it knows is its own record."""
    RESIGNING = "resigning"
    """It does not lead any more, and has not yet said so."""
    OVER = "over"
    """It led and has resigned, or never will lead."""


@dataclass(frozen=True, slots=True)
class Look:
    """Read the record; report it by `saw()`, or `failed()`."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write the record; report it by `wrote()`, `conflicted()` or `failed()`."""

    record: Record
    """The new record; its version means nothing."""
    expected: str | None
    """Version of the record that it replaces; None: there must be none."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do before this time."""

    until: float


Decision: TypeAlias = Look | Write | Rest


class Election:
    """One candidate, for one term. Ask `decide()`, do what it says, report what came of it, ask again; one at a time,
    except that `keep()` and `resign()` may come between."""

    def __init__(self, identity: str, *, duration: float = DURATION_S, fresh: bool = False, key: bytes = b"") -> None:
        """`identity`: nobody else alive has it; a process that has the identity of another proves that one dead.
        `duration`: seconds. `fresh`: where there is no record yet, no executor has ever worked, by the caller's word.
        `key`: that of a record that has none yet.
        """
        self.identity = identity
        self.duration = duration
        self.role = Role.FOLLOWING
        self.term: Term | None = None
        """The term that it won; stays when it is lost."""
        self.lead_until = _NEVER
        """Nobody else leads before this time."""
        self.lost = ""
        """Why it does not lead any more; empty: it was not taken from it."""
        self._fresh = fresh
        self._key = key
        self._follows = True
        self._record: Record | None = None
        """The record as last read or written."""
        self._changed_at = _NEVER
        """When it was seen to be another than before."""
        self._looked_at = _NEVER
        self._look_first = True
        """The record as it is now is not known well enough to replace it."""
        self._renewed_at = _NEVER
        """Sending of the last renewal that succeeded."""
        self._roster: tuple[Member, ...] | None = None
        """The roster to keep; None: the record's."""
        self._writes = 0

    @property
    def leader(self) -> str:
        """Identity of who leads, as far as is known; empty: nobody, or not known."""
        return self._record.holder if self._record is not None else ""

    @property
    def kept(self) -> bool:
        """True if the roster last given to `keep()` is in the record."""
        if self._roster is None or self._record is None:
            return self._roster is None
        return not self._look_first and self._record.roster == self._roster

    def decide(self, now: float, *, epoch_from: int = 1) -> Decision:
        """Next step at `now`. A new term's epoch is above the record's, and at least `epoch_from`.

        LeadershipLost if another process leads, and if this one could not renew in time.
        """
        if self.lost:
            raise LeadershipLost(self.lost)
        if self.role is Role.OVER:
            return Rest(float("inf"))
        if self._look_first:
            return Look()
        if self.role is Role.FOLLOWING:
            return self._follow(now, epoch_from)
        if self.role is Role.RESIGNING:
            return self._release()
        return self._lead(now)

    def saw(self, record: Record | None, now: float) -> None:
        """The record as it was read; `now`: when the answer was there."""
        old, self._record = self._record, record
        self._look_first, self._looked_at = False, now
        if self.role is Role.FOLLOWING:
            if _state(record) != _state(old):
                self._changed_at = now
        elif self.role is not Role.LEADING:
            if record is None or record.holder != self.identity:
                self.role = Role.OVER
        elif record is None:
            self._lose("the record of who leads was deleted")
        elif record.holder != self.identity or self.term is None or record.epoch != self.term.epoch:
            self._lose(f"{record.holder or 'another process, which has resigned,'} took over in epoch {record.epoch}")

    def wrote(self, record: Record, sent: float) -> None:
        """The record was written as it stands here; `sent`: when the write was sent."""
        self._record = record
        if not record.holder:
            self.role = Role.OVER
        elif self.role is Role.FOLLOWING:
            self.role, self.term = Role.LEADING, Term(record.epoch, record.roster, self._follows, record.key)
        if self.role is Role.LEADING:
            self._renewed_at = sent
            self.lead_until = max(self.lead_until, sent + self.duration * (1 - 2 * CLOCK_RATE_ERROR))

    def conflicted(self, now: float) -> None:
        """The write met another record than it was to replace."""
        self.failed(now, "the record is written by others all the time")

    def failed(self, now: float, why: str = "the store did not answer") -> None:
        """Nobody knows what became of what was to be done."""
        self._look_first = True
        if self.role is Role.LEADING and now >= self.lead_until:
            self._lose(f"could not renew in time: {why}")

    def keep_old(self) -> None:
        """The roster that was last given to `keep()` can't be: the record goes on with the one that it has."""
        self._roster = None

    def keep(self, roster: Sequence[Member]) -> None:
        """From now on the record has this roster; `kept` says when. LeadershipLost when it does not lead."""
        if self.role is not Role.LEADING or self.lost:
            raise LeadershipLost(self.lost or "this process does not lead")
        self._roster = tuple(roster)

    def resign(self) -> None:
        """Stops leading, or trying to, at once; the record is released by what `decide()` says next."""
        if self.role is Role.FOLLOWING and not self._writes:
            self.role = Role.OVER
        elif self.role is not Role.OVER:
            self.role = Role.RESIGNING
        self.lead_until = _NEVER

    def _follow(self, now: float, epoch_from: int) -> Decision:
        record = self._record
        if record is None:
            roster, self._follows = () if self._fresh else None, not self._fresh
            return self._write(Record(self.identity, max(1, epoch_from), self.duration, "", roster, key=self._key))
        # What the leader promised, but no less than what this one would: a record without a duration is nobody's.
        free_at = self._changed_at + max(record.duration, self.duration) * (1 + 2 * CLOCK_RATE_ERROR)
        if record.holder in ("", self.identity) or now >= free_at:
            epoch, self._follows = max(record.epoch + 1, epoch_from), True
            key = record.key or self._key
            return self._write(replace(record, holder=self.identity, epoch=epoch, duration=self.duration, key=key))
        look_at = self._looked_at + self.duration / _LOOKS
        return Look() if now >= look_at else Rest(min(look_at, free_at))

    def _lead(self, now: float) -> Decision:
        if now >= self.lead_until > self._looked_at:
            return Look()  # it has slept: its time is over, and somebody may lead
        renew_at = self._renewed_at + self.duration / RENEWALS
        return Rest(renew_at) if self.kept and now < renew_at else self._write(self._own())

    def _release(self) -> Decision:
        if self.leader == self.identity:
            return self._write(replace(self._own(), holder=""))
        self.role = Role.OVER  # it was a candidate whose write came too late
        return Rest(float("inf"))

    def _own(self) -> Record:
        assert self._record is not None
        roster = self._record.roster if self._roster is None else self._roster
        return replace(self._record, duration=self.duration, roster=roster)

    def _write(self, record: Record) -> Write:
        self._writes += 1
        expected = self._record.version if self._record is not None else None
        return Write(replace(record, renewal=f"{record.epoch}.{self._writes}", version=""), expected)

    def _lose(self, why: str) -> None:
        self.lost, self.lead_until = why, _NEVER
        self.role = Role.OVER


def _state(record: Record | None) -> tuple[str, int, str] | None:
    """Part of a record that a leader changes; others may touch the rest."""
    return (record.holder, record.epoch, record.renewal) if record is not None else None
