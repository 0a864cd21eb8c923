"""When a series of cases gives its place back, and what becomes of the cases that it has not run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest

from executor_service import Cause, Limits, Outcome, StdioCase
from executor_service.model import ExecutionResult, Output, RunRequest
from executor_service.runs.backends import Execution
from executor_service.runs.leases import LimiterDown
from executor_service.verification.cases import CaseBackend
from executor_service.verification.series import SLICE_S, CaseRun, Series
from fairbox.testing import ManualClock

REQUEST = RunRequest(b"", "python", Limits())


@dataclass
class Token:
    """A claim that can be lost."""

    lost: bool = False
    failed: bool = False
    waits: bool = False
    callbacks: list[Callable[[], None]] = field(default_factory=list)

    async def confirmed(self) -> None:
        return

    def check(self) -> None:
        if self.lost:
            raise LimiterDown("the lease is lost")

    def when_lost(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)


@dataclass
class Case(CaseBackend):
    """A case that takes some time, and does something then."""

    clock: ManualClock
    takes_s: float = 0.01
    then: Callable[[], object] = lambda: None
    output: bytes = b""
    killed: int = 0

    async def perform(self, attempt: Execution) -> ExecutionResult:
        attempt.claim.when_lost(self._kill)
        attempt.claim.check()
        self.clock.advance(self.takes_s)
        self.then()
        stdout = Output(self.output, len(self.output), truncated=False)
        return attempt.result(Outcome.FINISHED, Cause.POLICY, "", stdout=stdout)

    def _kill(self) -> None:
        self.killed += 1


class Bench:
    """Runs cases in a series."""

    def __init__(self, clock: ManualClock, works: list[Case]) -> None:
        self.token = Token()
        runs = [CaseRun(index, StdioCase(b"", b""), REQUEST, work) for index, work in enumerate(works)]
        self.waiting = runs[1:]
        self.series = Series(runs[0], lambda _: self.waiting.pop(0) if self.waiting else None, clock, nullcontext())
        self.attempt = Execution(REQUEST, 1, self.token, 0.5)

    async def run(self) -> list[int]:
        """Places of the cases that were run."""
        await self.series.perform(self.attempt)
        return [run.index for run in self.series.ended]


async def test_short_cases_follow_each_other_and_wait_in_the_queue_once() -> None:
    clock = ManualClock()
    bench = Bench(clock, [Case(clock) for _ in range(5)])
    assert await bench.run() == [0, 1, 2, 3, 4]
    assert [run.execution.queue_time_s for run in bench.series.ended] == [0.5, 0, 0, 0, 0]
    assert bench.attempt.started
    assert bench.series.unfinished is None


async def test_it_ends_after_its_time_and_when_it_holds_too_much() -> None:
    clock = ManualClock()
    slow = Bench(clock, [Case(clock, SLICE_S / 2) for _ in range(5)])
    assert await slow.run() == [0, 1]
    large = Bench(clock, [Case(clock, output=bytes(5 << 20)) for _ in range(5)])
    assert await large.run() == [0, 1]
    assert len(large.waiting) == 3


async def test_a_lease_that_is_lost_ends_what_runs_and_nothing_begins_under_it() -> None:
    clock = ManualClock()
    works = [Case(clock) for _ in range(5)]
    bench = Bench(clock, works)

    def lose() -> None:
        bench.token.lost = True
        for callback in bench.token.callbacks:
            callback()

    works[2].then = lose
    assert await bench.run() == [0, 1, 2]
    assert [work.killed for work in works] == [0, 0, 1, 0, 0]
    assert len(bench.token.callbacks) == 1


async def test_a_case_that_can_not_begin_is_unfinished() -> None:
    clock = ManualClock()
    bench = Bench(clock, [Case(clock), Case(clock)])
    bench.token.lost = True
    with pytest.raises(LimiterDown):
        await bench.run()
    assert (bench.series.unfinished and bench.series.unfinished.index, bench.attempt.started) == (0, False)
