"""The journal of one run: one for each trajectory, and the rewards of those that have ended.

Invariants: a trajectory is found by its place in the run and its attempt, so a run that is begun again with the same
settings finds what it had; the file goes when the run has ended, as the dump has everything then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from rollout.journal.entries import Scored
from rollout.journal.store import NAME, SCORE, Durability, JournalFile
from rollout.journal.trajectory_journal import TrajectoryJournal
from rollout.rewards.base import Reward


class RunJournal:
    """Made by `open_journal`. Its methods raise JournalError."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        self._ended_before: set[tuple[int, int]] = set()

    @property
    def about(self) -> Mapping[str, str]:
        """Facts about the run, as it was begun."""
        return self._file.about

    async def begin(self, dump: Path | None) -> None:
        """To be called before the dump is made: so whoever finds that finds the journal too. What the run has dumped
        before it was cut off is deleted, because all of it comes again. None: the run makes none."""
        await self._file.begin()
        if dump is not None:
            await asyncio.to_thread(dump.unlink, missing_ok=True)

    async def trajectory(self, place: int, attempt: int) -> TrajectoryJournal:
        """The journal of one trajectory."""
        entries, append = await self._file.entries(place, attempt), partial(self._file.append, place, attempt)
        journal = TrajectoryJournal(entries, append)
        if journal.ended is not None:
            self._ended_before.add((place, attempt))
        return journal

    def ended_before(self, place: int, attempt: int) -> bool:
        """Says whether an attempt had ended already when its journal was asked for: it was gone through again."""
        return (place, attempt) in self._ended_before

    async def reward(self, place: int, attempt: int) -> Reward | None:
        """The reward that a trajectory got; None: it got none."""
        found = await self._file.score(place, attempt)
        return Reward(found.value, found.parts, found.turns) if isinstance(found, Scored) else None

    async def keep(self, place: int, attempt: int, reward: Reward) -> None:
        """Records the reward of a trajectory."""
        scored = Scored(reward.value, dict(reward.parts), dict(reward.turns))
        await self._file.append(place, attempt, SCORE, scored)

    async def forget(self, place: int) -> None:
        """Deletes what a trajectory has: it has ended, and what it came to is kept elsewhere, or nobody wants it."""
        await self._file.forget(place)

    async def end(self) -> None:
        """Deletes the file: there is nothing left to go on with."""
        await self._file.delete()


@asynccontextmanager
async def open_journal(
    folder: Path, durability: Durability, about: Mapping[str, str] | None
) -> AsyncIterator[RunJournal | None]:
    """The journal of the run whose dump is in `folder`; None if nothing is written. `about` None: it goes on."""
    if durability is Durability.NONE:
        yield None
        return
    async with JournalFile(folder / NAME, durability=durability, about=about) as file:
        yield RunJournal(file)
