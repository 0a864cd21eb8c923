"""Access of tools to executor and limiter: leases, attempts, pauses after failures.

A call waits for a slot of this process, first in, first out, and with the global limit for a lease of the limiter; each
wait ends by its deadline. After an executor has failed, calls wait a little before they take a lease (`Cooldown`).
Without it thousands of calls that wait behind each other would each find the same failure within milliseconds, and use
up every lease and every attempt meanwhile.

Invariants: leaving a slot's block, or being cancelled while waiting, gives everything back, unless what ran there may
go on without its caller; each attempt has a lease and a request id of its own; the limiter is not connected to unless a
tool runs under its leases, nor an executor unless a tool runs code there. It keeps nothing of a trajectory.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from executor_service import (
    Cause,
    ExecutionResult,
    ExecutorClient,
    ExecutorError,
    InvalidRequest,
    LeaseRefused,
    NotFound,
    SessionNotFound,
)
from fairbox.clock import Clock
from fairbox.errors import FairboxError
from limiter import LeaseLike, LimiterClient, LimiterError
from rollout.tools.base import InfraError
from rollout.tools.code.settings import ExecutorToolConfig
from rollout.tools.statistics import CallPhase, set_phase

T = TypeVar("T")

FIRST_S = 0.1
LAST_S = 5.0
"""The longest pause: a service that is back is found within this time."""
BUCKET = "code"
"""The limiter's bucket for programs."""
_RETRY_AFTER_S = 0.3
"""Before the second attempt."""
_CALL_ALLOWANCE_S = 30.0
"""Seconds for setting up the sandbox and the way there and back, beyond queue and program."""
_ANSWERS = (InvalidRequest, NotFound, SessionNotFound)
"""Errors by which an executor does its job."""


class BadProgram(FairboxError):
    """The executor does not take this text as a program; it says what is wrong, for the model."""


class RetryableError(InfraError):
    """The service failed, and a second attempt changes nothing that the model could see. `unbound`: the attempt's
    lease, where no executor could bind it. `retry_after_s`: the shortest pause before the second attempt, if the
    service asks for one."""

    def __init__(self, message: str, unbound: LeaseLike | None = None, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.unbound = unbound
        self.retry_after_s = retry_after_s


class ToolServices:
    """`async with ToolServices(executor="host:port", limiter="host:port") as services`: the clients that the tools of a
    process share, one channel each, whatever number of tools. Each is opened by the first tool that needs it."""

    def __init__(self, *, executor: str, limiter: str) -> None:
        self.executor_target = executor
        self.limiter_target = limiter
        self._executor: ExecutorClient | None = None
        self._limiter: LimiterClient | None = None
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._executor = self._limiter = None
        await self._stack.aclose()

    async def open_executor(self) -> ExecutorClient:
        """The executor's client; tools call this when they are entered."""
        if self._executor is None:
            self._executor = ExecutorClient(self.executor_target)
            await self._stack.enter_async_context(self._executor)
        return self._executor

    async def open_limiter(self) -> LimiterClient:
        """The limiter's client; tools call this when they are entered."""
        if self._limiter is None:
            self._limiter = LimiterClient(self.limiter_target)
            await self._stack.enter_async_context(self._limiter)
        return self._limiter


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
        """Number of failures in a row that count."""
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
        """Seconds to wait before the next attempt."""
        return max(0.0, self._until - now)


@dataclass(frozen=True, slots=True)
class CodeOutcome:
    """A program that ran, however it ended; its cause is not INFRA."""

    result: ExecutionResult
    wait_s: float
    """In queues: for a worker, a lease, a slot at the executor."""
    run_s: float
    fresh: bool = False
    """True when a session had to be begun anew, because the code had ended it: the model must be told."""


@dataclass(slots=True)
class Slot:
    """The right to run one program now."""

    lease: LeaseLike | None
    """None if this process alone bounds what runs."""
    taken: float
    """When it was given."""
    kept_s: float = 0.0
    """Seconds for which the program may go on after the block is left, and counts; 0: it has ended."""


class SlotPool:
    """The workers and leases that the programs and cells of one tool run under, and their second attempts. With
    `limiter` None only the workers bound what runs."""

    def __init__(self, config: ExecutorToolConfig, *, limiter: LimiterClient | None, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.cooldown = Cooldown()
        self._workers = asyncio.Semaphore(config.workers)
        self._limiter = limiter

    async def attempts(self, attempt: Callable[[LeaseLike | None], Awaitable[T]]) -> T:
        """Calls `attempt`, and once more after a RetryableError, then with the lease that could not be bound."""
        try:
            return await attempt(None)
        except RetryableError as error:
            unbound, pause = error.unbound, max(_RETRY_AFTER_S, error.retry_after_s)
        await asyncio.sleep(pause)
        return await attempt(unbound)

    @contextlib.asynccontextmanager
    async def slot(self, unbound: LeaseLike | None = None, *, hold: float = 0.0) -> AsyncIterator[Slot]:
        """Waits for a worker, then for a lease, each at most `queue_timeout`. `unbound`: a lease that could not be
        bound, whose place in the queue this one has if the limiter was restarted. `hold`: seconds after which a lease
        that nobody binds ends by itself; 0: an executor binds it. Raises RetryableError."""
        set_phase(CallPhase.WORKER)
        async with contextlib.AsyncExitStack() as held:
            await self._worker(held)
            # Before the lease, which nobody else could use meanwhile. Spread, so that not all try again at once.
            await asyncio.sleep(self.cooldown.pause(self.clock.now()) * random.uniform(0.5, 1.0))  # noqa: S311
            lease = None
            if self._limiter is not None:
                set_phase(CallPhase.LEASE)
                waiting = self._limiter.lease(
                    bucket=BUCKET, queue_timeout=self.config.queue_timeout, hold=hold, instead_of=unbound
                )
                try:
                    lease = await held.enter_async_context(waiting)
                except LimiterError as error:
                    raise RetryableError(str(error)) from error
            now = self.clock.now()
            set_phase(CallPhase.RUNNING)
            slot = Slot(lease, now)
            try:
                with self._watched(now):
                    yield slot
            finally:
                if slot.kept_s:
                    self._keep(slot, held)

    def outcome(self, result: ExecutionResult, slot: Slot, began: float, *, fresh: bool = False) -> CodeOutcome:
        """The outcome of a result that came now, to a call that began then. The executor's queue is a wait."""
        run_s = self.clock.now() - slot.taken
        queued = result.queue_time_s
        return CodeOutcome(result, slot.taken - began + queued, max(0.0, run_s - queued), fresh)

    def _keep(self, slot: Slot, held: contextlib.AsyncExitStack) -> None:
        """Counts a program on that nobody waits for: by its lease until the hold time is over, or by its worker."""
        if self._limiter is not None and slot.lease is not None:
            self._limiter.keep(slot.lease)
            return
        held.pop_all()
        asyncio.get_running_loop().call_later(slot.kept_s, self._workers.release)

    @contextlib.contextmanager
    def _watched(self, began: float) -> Iterator[None]:
        """Notes whether the executor does its job."""
        try:
            yield
        except Exception as error:
            if isinstance(error, InfraError) or (isinstance(error, ExecutorError) and not isinstance(error, _ANSWERS)):
                self.cooldown.failed(began, self.clock.now())
            raise
        self.cooldown.succeeded()

    async def _worker(self, held: contextlib.AsyncExitStack) -> None:
        limit = self.config.queue_timeout
        try:
            async with asyncio.timeout(limit):
                await self._workers.acquire()
        except TimeoutError:
            raise RetryableError(f"waited {limit:g} s for one of {self.config.workers} workers") from None
        held.callback(self._workers.release)


class CodeClient(SlotPool):
    """Runs the programs and cells of one tool at an executor."""

    def __init__(
        self, executor: ExecutorClient, config: ExecutorToolConfig, *, limiter: LimiterClient | None, clock: Clock
    ) -> None:
        super().__init__(config, limiter=limiter, clock=clock)
        self.executor = executor

    async def execute(self, code: str, slot: Slot, wall_time_s: float, **options: Any) -> ExecutionResult:
        """The result of one program or cell, whose cause is not INFRA. Raises BadProgram for a text that is none,
        RetryableError for a lease that can't be bound, so that nothing has run, and every other FairboxError."""
        try:
            result = await self.executor.execute(
                code,
                lease=slot.lease,
                request_id=uuid.uuid4().hex,
                call_timeout=wall_time_s + self.config.queue_timeout + _CALL_ALLOWANCE_S,
                **options,
            )
        except LeaseRefused as error:
            raise RetryableError(str(error), slot.lease) from error
        except InvalidRequest as error:  # the model's fault where the code is all that is wrong, and else ours
            if error.fields and all(field.field == "code" for field in error.fields):
                raise BadProgram("; ".join(f"the code {field.problem}" for field in error.fields)) from error
            raise
        if result.cause is Cause.INFRA:
            raise InfraError(f"the executor reports {result.outcome}: {result.message}")
        return result
