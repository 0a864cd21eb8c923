"""VerifyCode on a machine with more to do than it can: what a candidate waits for a processor is not charged to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from executor_service import AssertCase, ExecutorClient, FunctionCase, Limits, Outcome, Verdict
from tests.executor.servers import Server, overloaded, running

HOGS = 4 * len(os.sched_getaffinity(0))
"""So many that what else runs on the machine matters little: a candidate may wait for up to three times its limit."""
BURN = """import time
def f(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
    return 1
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(f"max_concurrent={HOGS + 2}") as started:
        yield started


@pytest.fixture
async def busy(executor: ExecutorClient, server: Server) -> AsyncIterator[ExecutorClient]:
    """A client of a server with four times as many busy loops as processors."""
    async with overloaded(executor, server, HOGS):
        yield executor


async def test_a_candidate_gets_the_time_that_it_needs_alone(busy: ExecutorClient) -> None:
    limits = Limits(wall_time_s=2.0)
    called = await busy.verify(BURN, [FunctionCase((0.6,), 1)], entry_point="f", limits=limits)
    # The time of a case is that of all its calls.
    asserted = await busy.verify(BURN, [AssertCase("for _ in range(4): assert f(0.15) == 1")], limits=limits)
    for result in (called, asserted):
        [case] = result.cases
        assert (case.verdict, case.message) == (Verdict.PASSED, "")
        assert case.execution is not None
        assert case.execution.wall_time_s > 2.0


async def test_one_that_does_not_wait_for_a_processor_gets_nothing(busy: ExecutorClient) -> None:
    code = "import time\ndef f(): time.sleep(60)"
    result = await busy.verify(code, [FunctionCase((), 1)], entry_point="f", limits=Limits(wall_time_s=1.0))
    [case] = result.cases
    assert case.verdict is Verdict.FAILED
    assert case.execution is not None
    assert case.execution.outcome is Outcome.TIME_LIMIT
    assert 1.0 <= case.execution.wall_time_s < 2.0


async def test_one_that_never_ends_is_ended_within_the_bound(busy: ExecutorClient) -> None:
    code = "def f():\n    while True: pass"
    result = await busy.verify(code, [FunctionCase((), 1)], entry_point="f", limits=Limits(wall_time_s=0.5))
    [case] = result.cases
    assert case.execution is not None
    assert case.execution.outcome is Outcome.TIME_LIMIT
    assert case.execution.wall_time_s < 3 * 0.5 + 1.5
