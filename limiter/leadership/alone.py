"""Leading without asking anybody: one limiter, by the operator's word.

Nothing is kept, so a limiter that was restarted does not know who was running, and waits for the longest time that a
program can have outlived its predecessor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from limiter.leadership.term import Member, Term

__all__ = ["Alone"]


class Alone:
    """`leader=none`. `fresh`: the caller knows that no executor has worked for an earlier limiter."""

    keeps_roster = False
    lead_until = float("inf")

    def __init__(self, *, name: str = "", fresh: bool = False) -> None:
        self.leader = name
        self._fresh = fresh

    async def campaign(self) -> Term:
        """At once. The epoch is the wall clock in milliseconds: it grows over restarts unless the clock is set back."""
        return Term(time.time_ns() // 1_000_000, () if self._fresh else None)

    async def hold(self) -> None:
        """Until it is cancelled."""
        await asyncio.Event().wait()

    async def store(self, roster: Sequence[Member]) -> None:
        """Keeps nothing."""

    async def resign(self) -> None:
        """There is nobody to tell."""
