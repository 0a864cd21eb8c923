"""One trajectory's part of a journal: gives what is recorded, and records what is not.

Invariants: an effect that is recorded never happens again; it is recorded before anything is seen that follows from it;
calls are recorded before they are sent, and those of which nobody knows whether they ran are not sent again. The
journal's file is not known here: the entries are given, and a way to append.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast

from rollout.engines.base import EngineUnavailable
from rollout.journal.entries import Answered, Calling, E, Ended, Entry, Opened, Rewarded, Sampled
from rollout.journal.store import JournalError
from rollout.tools.base import InfraError, ToolResponse

_WITH_THE_NEXT = (Opened, Sampled)
"""Entries of which nothing is seen outside before the next one is recorded: that one commits them too."""
CUT_OFF = "the run was cut off while the calls of a turn ran, and nobody knows what became of them"


class OtherTask(JournalError):
    """The trajectory that is recorded in this place is one of another task."""


class Append(Protocol):
    """Makes an entry, with its number, last for as long as the journal does."""

    async def __call__(self, number: int, entry: Entry, *, waits: bool) -> None:
        """Returns when it lasts, if it `waits` for that."""
        ...


class TrajectoryJournal:
    """Asked by a trajectory before each of its effects."""

    def __init__(self, recorded: Sequence[Entry], append: Append) -> None:
        last = recorded[-1] if recorded else None
        self.ended = last if isinstance(last, Ended) else None
        """The recorded end; None: it goes on from what is recorded."""
        self._recorded = recorded if self.ended is None else [*recorded[: self.ended.follows], self.ended]
        self._append = append
        self._next = 0
        """Number of entries that were gone through, recorded or not."""
        self._appended = len(recorded)

    async def opened(self, own: Opened) -> Opened:
        """The trajectory's beginning. Raises OtherTask if it was that of another task, and JournalError."""
        found = await self.once(Opened, lambda: _done(own))
        if found.task != own.task:
            raise OtherTask("a task is not the one whose trajectory is recorded: have its data or prompt changed?")
        return found

    async def once(self, kind: type[E], do: Callable[[], Awaitable[E]]) -> E:
        """The recorded effect, or what `do` comes to, recorded. Raises what `do` raises, JournalError, and
        EngineUnavailable with the recorded reason if the trajectory had failed here."""
        if (found := self._take(kind)) is not None:
            return found
        if self.ended is not None:
            raise EngineUnavailable(self.ended.error or "the recorded end does not follow from what is recorded")
        entry = await do()
        await self._record(entry)
        return entry

    async def end(self, total_s: float, error: str | None) -> Ended:
        """The recorded end, or this one, recorded. Raises JournalError."""
        if (found := self._take(Ended)) is not None:
            return found
        ended = Ended(total_s, error, self._next)
        self._recorded = self._recorded[: self._next]  # it follows none of the others: they lead to another end
        await self._record(ended)
        return ended

    async def calls(
        self,
        do: Callable[[], Awaitable[Answered]],
        rebuild: Callable[[Sequence[ToolResponse]], Awaitable[None]],
        *,
        repeatable: bool,
    ) -> Answered:
        """As `once`, for calls of tools; `rebuild` gives tools the state that they had behind recorded answers. Raises
        what that raises, and InfraError if calls had begun, no answer is recorded, and they are not `repeatable`."""
        if self._take(Calling) is None:
            await self._record(Calling())
        elif (found := self._take(Answered)) is not None:
            if self.ended is None:
                await rebuild(found.responses)
            return found
        elif self.ended is not None or not repeatable:
            raise InfraError(CUT_OFF if self.ended is None else self.ended.error or CUT_OFF)
        return await self.once(Answered, do)

    async def rewards(self, do: Callable[[], Awaitable[dict[str, float]]]) -> dict[str, float]:
        """As `once`, for what the tools give."""

        async def made() -> Rewarded:
            return Rewarded(await do())

        return (await self.once(Rewarded, made)).rewards

    def _take(self, kind: type[E]) -> E | None:
        if self._next >= len(self._recorded) or not isinstance(self._recorded[self._next], kind):
            return None
        self._next += 1
        return cast("E", self._recorded[self._next - 1])

    async def _record(self, entry: Entry) -> None:
        if self._next < len(self._recorded):
            found = type(self._recorded[self._next]).__name__
            raise JournalError(f"a trajectory goes on with {type(entry).__name__}, but {found} is recorded")
        await self._append(self._appended, entry, waits=not isinstance(entry, _WITH_THE_NEXT))
        self._appended += 1
        self._next += 1


class Unrecorded(TrajectoryJournal):
    """Records nothing."""

    def __init__(self) -> None:
        super().__init__((), _forget)


async def _forget(number: int, entry: Entry, *, waits: bool) -> None:
    return None


async def _done(entry: E) -> E:
    return entry
