"""Cases of one request one after the other, in one turn of the queue and under one lease.

Invariants: each case that is taken is in `ended` or is `unfinished`; once `SLICE_S` is over, a series gives its place
back with the next end of a case: nobody waits for the whole request.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from executor_service.grading.request import CheckedCase
from executor_service.model import ExecutionResult, RunRequest
from executor_service.runs.backends import Execution
from executor_service.runs.leases import LimiterDown
from executor_service.verification.cases import CaseBackend
from fairbox.clock import Clock

SLICE_S = 0.5
"""Many short cases save their turns in the queue; for few long ones there is nothing to be saved."""
_HELD_BYTES = 8 << 20
"""Bytes of results that wait to be judged; the series ends with the one that takes it beyond."""


@dataclass(eq=False, slots=True)
class CaseRun:
    """A case on its way."""

    index: int
    """Place in its request."""
    case: CheckedCase
    request: RunRequest
    work: CaseBackend
    result: ExecutionResult | None = None

    @property
    def execution(self) -> ExecutionResult:
        """Its result; to be asked for once it has been run."""
        assert self.result is not None
        return self.result

    @property
    def size(self) -> int:
        """Bytes that it holds until it is judged."""
        answer = self.work.answer
        return self.execution.size + (len(answer.actual) if answer is not None and answer.is_value else 0)


class Series:
    """A `Backend`: runs `first` and what else `following` has. Its result is that of the last one."""

    def __init__(
        self,
        first: CaseRun,
        following: Callable[[CaseRun], CaseRun | None],
        clock: Clock,
        around: AbstractAsyncContextManager[object],
    ) -> None:
        """`following`: the case after one that has been run; None: there is none, or it is to wait. `around`: what the
        cases have in common, to be left before the place is given back."""
        self._present: CaseRun | None = first
        self._following = following
        self._clock = clock
        self._around = around
        self.ended: list[CaseRun] = []
        """In the order in which they were run."""

    @property
    def unfinished(self) -> CaseRun | None:
        """The case that has no result, because the series was not begun or could not go on."""
        return self._present

    async def perform(self, attempt: Execution) -> ExecutionResult:
        async with self._around:
            return await self._perform(attempt)

    async def _perform(self, attempt: Execution) -> ExecutionResult:
        claim, began, held = _SharedClaim(attempt), self._clock.now(), 0
        while True:
            run = self._present
            assert run is not None
            own = Execution(
                run.request, attempt.number, claim, attempt.queue_s, served_by=attempt.served_by, level=attempt.level
            )
            run.result = result = await run.work.perform(own)
            self.ended.append(run)
            held += run.size
            goes_on = self._clock.now() - began < SLICE_S and held < _HELD_BYTES and claim.holds()
            self._present = self._following(run) if goes_on else None
            if self._present is None:
                return result
            attempt.queue_s = 0.0


class _SharedClaim:
    """The claim of a series, as each of its cases sees it."""

    failed = False

    def __init__(self, attempt: Execution) -> None:
        self._attempt = attempt
        self._claim = attempt.claim
        self._lost: Callable[[], None] | None = None

    @property
    def waits(self) -> bool:
        return self._claim.waits

    async def confirmed(self) -> None:
        await self._claim.confirmed()

    def check(self) -> None:
        self._claim.check()
        self._attempt.started = True

    def holds(self) -> bool:
        """Says whether another case may begin under it."""
        try:
            self._claim.check()
        except LimiterDown:
            return False
        return True

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Calls it for the case that runs alone: others, and what they hold, are kept no longer."""
        first, self._lost = self._lost is None, callback
        if first:
            self._claim.when_lost(self._tell)

    def _tell(self) -> None:
        if self._lost is not None:
            self._lost()
