"""The record over which candidates agree who leads, and what keeps it.

There is one record. Every write replaces it as a whole and names the version that it replaces, so of two that were
based on the same version one fails. It holds no times of day: candidates time its changes with their own clocks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from limiter.leadership.term import Member

__all__ = [
    "Conflict",
    "Record",
    "RecordStore",
    "StoreUnavailable",
    "decode_roster",
    "encode_roster",
    "wall_epoch",
]


def wall_epoch() -> int:
    """Least epoch of a term that begins now: the wall clock in milliseconds.

    A term always has a higher epoch than the one before it on its record. This makes it higher too where that record
    was lost, or where the limiter before kept none, unless the clock was set back in between.
    """
    return max(1, time.time_ns() // 1_000_000)


def encode_roster(roster: Sequence[Member] | None) -> list[list[str]] | None:
    """`[[session_id, name], ...]`; None stays None."""
    return None if roster is None else [[member.session_id, member.name] for member in roster]


def decode_roster(value: object) -> tuple[Member, ...] | None:
    """What `encode_roster` wrote; ValueError says what is wrong."""
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


@dataclass(frozen=True, slots=True)
class Record:
    """What the record says."""

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


class Conflict(Exception):  # noqa: N818 - a fact about the record
    """The record is not the one that the write would have replaced. Nothing was written."""


class StoreUnavailable(Exception):  # noqa: N818 - a fact about the store
    """The store gave no answer; the text says why. A write may have happened, and may happen yet."""


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
