"""Work that several calls may wait for, done once.

Invariants: the work belongs to none of the calls: each may leave, and when the last has left, the work is cancelled or
goes on, as its owner says; whatever happens, it comes to one ending, which every call that waits gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

from executor_service.cleanup import leave
from executor_service.runs.dedup import DedupTable
from fairbox.clock import Clock

T = TypeVar("T")


def _nobody(ending: object) -> None:
    """It has landed."""


class Flight(Generic[T]):
    """One piece of work. `landed` is called once with its ending, before the calls that wait get it."""

    def __init__(self, landed: Callable[[T | Exception], object], *, goes_on: bool = False) -> None:
        self.done = asyncio.Event()
        self.given_up = False
        self._landed = landed
        self._goes_on = goes_on
        self.waiters = 0
        self._ending: T | Exception | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun = False

    def begin(
        self,
        tasks: asyncio.TaskGroup,
        work: Callable[[], Awaitable[T]],
        cancelled: Callable[[], T | Exception],
        name: str,
    ) -> asyncio.Task[None]:
        """Begins the work in a task of `tasks`; `cancelled` says how it ends when it is cancelled."""
        self._task = tasks.create_task(self._fly(work, cancelled), name=name)
        return self._task

    async def wait(self) -> T:
        """Waits for the result. Raises the error that it ends with."""
        self.waiters += 1
        try:
            await self.done.wait()
        finally:
            self.waiters -= 1
            if not self.waiters and not self._goes_on and not self.done.is_set():
                self.cancel()
        if isinstance(self._ending, Exception):
            raise self._ending
        assert self._ending is not None
        return self._ending

    def cancel(self) -> None:
        """Ends it soon. Idempotent."""
        self.given_up = True
        # Before its first line a task can't be cancelled: it would end without a word.
        if self._begun and self._task is not None:
            self._task.cancel()

    def land(self, ending: T | Exception) -> None:
        """Gives the ending to every call that waits; the first one stays."""
        if not self.done.is_set():
            self._ending = ending
            landed, self._landed = self._landed, _nobody  # it may know this flight, which would then keep itself
            landed(ending)
            self.done.set()

    async def _fly(self, work: Callable[[], Awaitable[T]], cancelled: Callable[[], T | Exception]) -> None:
        self._begun = True
        ending: T | Exception
        try:
            if self.given_up:
                raise asyncio.CancelledError
            ending = await work()
        except asyncio.CancelledError:
            ending = cancelled()
        except Exception as error:  # the boundary: the service names it, calls that wait get it
            ending = error
        self.land(ending)


class SingleFlight(Generic[T]):
    """Work that is done once for each request id: `async with SingleFlight(...) as once: await once.do(...)`.

    `size` says what a result costs to be kept. With `discard`, work goes on when every call has left; it is given
    what comes of it for calls that can't come back, because they had no id.
    """

    def __init__(
        self,
        clock: Clock,
        table: DedupTable[Flight[T], T],
        size: Callable[[T], int],
        cancelled: Callable[[], Exception],
        *,
        discard: Callable[[T], object] | None = None,
    ) -> None:
        self._clock = clock
        self._table = table
        self._size = size
        self._cancelled = cancelled
        self._discard = discard
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> SingleFlight[T]:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await leave(self._tasks, error)

    def knows(self, request_id: str) -> bool:
        """Says whether work with this id is in flight, or has ended and is remembered."""
        return self._table.knows(request_id)

    async def do(self, request_id: str, fingerprint: bytes, work: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """Result of `work`, or of earlier work with the same id, and whether it is the latter.

        Raises what `DedupTable.look_up` and the work raise. An empty id is like no other.
        """
        flight, kept = self._table.look_up(request_id, fingerprint, self._clock.now())
        if kept is not None:
            return kept, True
        if flight is not None:
            return await flight.wait(), True
        new: Flight[T] = Flight(lambda ending: self._settle(request_id, new, ending), goes_on=self._discard is not None)
        self._table.begin(request_id, fingerprint, new)
        new.begin(self._tasks, work, self._cancelled, "work done once")
        return await new.wait(), False

    def _settle(self, request_id: str, flight: Flight[T], ending: T | Exception) -> None:
        """Keeps a result. Where there is none nothing was made, or doing it again has no effects: the id is free."""
        if isinstance(ending, Exception):
            self._table.abandon(request_id)
        else:
            self._table.end(request_id, ending, self._size(ending), self._clock.now())
            if self._discard is not None and not request_id and not flight.waiters:
                self._discard(ending)
