"""A place to run: a worker of this process and, with the global limit, a lease of the limiter.

Invariants: places are given first in, first out; a wait ends by its deadline; leaving the block, or being cancelled
while waiting, gives everything back; the board shows where each call is. After an executor has failed, calls wait a
little before they take a lease (`Cooldown`).

`Cooldown` is shared by all who use the service in one process. Without it thousands of calls that wait behind each
other would each find the same failure within milliseconds, and use up every lease and every repeat of a run meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from executor_service import ExecutorError, InvalidRequest, NotFound, SessionNotFound
from fairbox.clock import Clock
from limiter import LeaseLike, LimiterClient
from rollout.tools.base import InfraError
from rollout.tools.statistics import CallBoard, CallPhase

__all__ = [
    "Cooldown",
    "Place",
    "Places",
]

FIRST_S = 0.1
LAST_S = 5.0
"""The longest pause: a service that is back is found within this time."""


class Cooldown:
    """The pause doubles with each failure in a row. Attempts that were under way together count as one. Times are
    monotonic seconds."""

    __slots__ = ("_failures", "_noted", "_until")

    def __init__(self) -> None:
        self._failures = 0
        self._noted = float("-inf")
        """When the last failure that counts was noted."""
        self._until = float("-inf")

    @property
    def failures(self) -> int:
        """How many in a row count."""
        return self._failures

    def succeeded(self) -> None:
        """The service works: nobody need wait."""
        self._failures, self._until = 0, float("-inf")

    def failed(self, began: float, now: float) -> None:
        """An attempt that began then has failed now, and it was the service's fault."""
        if began < self._noted:
            return
        self._noted = now
        self._until = now + min(LAST_S, FIRST_S * 2.0 ** min(self._failures, 30))
        self._failures += 1

    def pause(self, now: float) -> float:
        """How long to wait before the next attempt, seconds."""
        return max(0.0, self._until - now)


_ANSWERS = (InvalidRequest, NotFound, SessionNotFound)
"""Errors by which an executor does its job."""
BUCKET = "code"
"""The limiter's bucket for programs."""


@dataclass(frozen=True, slots=True)
class Place:
    """The right to run one program now."""

    lease: LeaseLike | None
    """None where this process alone bounds what runs."""
    wait_s: float
    """What it took to get it."""


class Places:
    """`async with places.take() as place`. With `limiter` None only `workers` bounds what runs."""

    def __init__(self, workers: int, *, limiter: LimiterClient | None, queue_timeout_s: float, clock: Clock) -> None:
        self.board = CallBoard(workers)
        self.cooldown = Cooldown()
        self._workers = asyncio.Semaphore(workers)
        self._limiter = limiter
        self._queue_timeout_s = queue_timeout_s
        self._clock = clock

    @contextlib.asynccontextmanager
    async def take(self, *, instead_of: LeaseLike | None = None) -> AsyncIterator[Place]:
        """Waits for a worker, then for a lease, each at most `queue_timeout_s`. `instead_of`: a lease that could not be
        bound, whose place in the queue this one has where the limiter was restarted. Raises InfraError and
        LimiterError."""
        board, call, began, answered = self.board, object(), self._clock.now(), False
        board.moved(call, CallPhase.WORKER, began)
        try:
            async with contextlib.AsyncExitStack() as held:
                await self._worker(held)
                # Before the lease, which nobody else could use meanwhile. Spread, so that not all try again at once.
                await asyncio.sleep(self.cooldown.pause(self._clock.now()) * random.uniform(0.5, 1.0))  # noqa: S311
                lease = None
                if self._limiter is not None:
                    board.moved(call, CallPhase.LEASE, self._clock.now())
                    waiting = self._limiter.lease(
                        bucket=BUCKET,
                        queue_timeout=self._queue_timeout_s,
                        instead_of=instead_of,
                    )
                    lease = await held.enter_async_context(waiting)
                now = self._clock.now()
                board.moved(call, CallPhase.RUNNING, now)
                with self._watched(now):
                    yield Place(lease, now - began)
            answered = True
        finally:
            board.ended(call, self._clock.now(), answered=answered)

    @contextlib.contextmanager
    def _watched(self, began: float) -> Iterator[None]:
        """Notes whether the executor does its job."""
        try:
            yield
        except Exception as error:
            if isinstance(error, InfraError) or (isinstance(error, ExecutorError) and not isinstance(error, _ANSWERS)):
                self.cooldown.failed(began, self._clock.now())
            raise
        self.cooldown.succeeded()

    async def _worker(self, held: contextlib.AsyncExitStack) -> None:
        limit = self._queue_timeout_s
        try:
            async with asyncio.timeout(limit):
                await self._workers.acquire()
        except TimeoutError:
            raise InfraError(f"waited {limit:g} s for one of {self.board.workers} workers") from None
        held.callback(self._workers.release)
