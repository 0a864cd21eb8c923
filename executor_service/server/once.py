"""Work that is done once for each request id, and whose result is kept: what makes a call safe to repeat.

Invariants: the work belongs to this object and not to the call that brought it, and goes on when that is cancelled;
nothing is left when the block is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from executor_service.core.dedup import DedupTable, Done, Gone, Join
from executor_service.server.runs import ResultGone
from fairbox.clock import Clock

__all__ = ["Once"]

T = TypeVar("T")
_KEPT_BYTES = 1024
"""What the description of a session takes."""


@dataclass(eq=False, slots=True)
class _Work(Generic[T]):
    task: asyncio.Task[T]
    waiters: int = 0


class Once(Generic[T]):
    """`discard` is given what was made for calls that have gone and can't come back, because they had no id."""

    def __init__(self, clock: Clock, discard: Callable[[T], None], table: DedupTable[_Work[T], T]) -> None:
        self._clock = clock
        self._discard = discard
        self._table = table
        self._running: set[_Work[T]] = set()

    async def __aenter__(self) -> Once[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._running:
            await asyncio.wait([work.task for work in self._running])

    async def do(self, request_id: str, fingerprint: bytes, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `make`, or of the work with the same id. Raises IdReused, ResultGone, and what it raises."""
        work: _Work[T] | None = None
        if request_id:
            known = self._table.look_up(request_id, fingerprint, self._clock.now())
            if isinstance(known, Done):
                return known.result
            if isinstance(known, Gone):
                raise ResultGone
            if isinstance(known, Join):
                work = known.run
        if work is None:
            work = self._begin(request_id, fingerprint, make)
        work.waiters += 1
        try:
            return await asyncio.shield(work.task)
        finally:
            work.waiters -= 1

    def _begin(self, request_id: str, fingerprint: bytes, make: Callable[[], Coroutine[Any, Any, T]]) -> _Work[T]:
        work = _Work(asyncio.create_task(make(), name="work done once"))
        self._running.add(work)
        if request_id:
            self._table.begin(request_id, fingerprint, work)
        work.task.add_done_callback(lambda _: self._settle(request_id, work))
        return work

    def _settle(self, request_id: str, work: _Work[T]) -> None:
        self._running.remove(work)
        failed = work.task.cancelled() or work.task.exception() is not None
        if request_id and failed:
            self._table.abandon(request_id)  # nothing was made: the id is free again
        elif request_id:
            self._table.end(request_id, work.task.result(), _KEPT_BYTES, self._clock.now())
        elif not work.waiters and not failed:
            self._discard(work.task.result())
