"""Time that a cell or program spends waiting for a processor is not charged to its wall time, up to a bound."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from executor_service import ExecutorClient, InvalidRequest, Limits, Outcome, Session
from executor_service.guest.watch import PATIENCE
from executor_service.runs.wall_time import WallTime
from fairbox.testing import ManualClock
from tests.executor.levels import Level
from tests.executor.servers import SLOWNESS, Server, overloaded

BURN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n'done'"
HOGS = 8 * len(os.sched_getaffinity(0))
"""So many that a cell that computes for an eighth of its limit needs more than that, and much less than four times its
limit, which is how long it may take, so that there is room for what else the machine does."""


async def test_the_time_that_is_left_grows_with_the_waiting_up_to_a_bound() -> None:
    waited = iter((0.0, 1.0, 50.0, 50.0))
    clock = ManualClock(100.0)

    async def waited_s(within_s: float) -> float:
        assert 0 < within_s <= 5
        return next(waited)

    time = WallTime(clock, 2.0, waited_s, 100.0)
    assert time.left_s() == 2.0
    clock.advance(2.5)
    assert (await time.more_s(), await time.more_s()) == (0.0, 0.5)
    clock.advance(1.5)
    assert await time.more_s() == 100.0 + 2.0 * PATIENCE - 104.0
    clock.advance(100.0 + 2.0 * PATIENCE - clock.now())
    assert await time.more_s() == 0.0


@pytest.fixture(scope="module")
def crowded(level: Level) -> Iterator[Server]:
    with level.running(f"max_concurrent={HOGS + 2}") as server:
        yield server


@pytest.fixture
async def busy(crowded: Server) -> AsyncIterator[tuple[ExecutorClient, Session]]:
    """A client of a server with more to do than it can, and a session there."""
    async with ExecutorClient(crowded.target) as executor, executor.session() as session:
        await session.run("x = 'kept'")
        async with overloaded(executor, crowded, HOGS):
            yield executor, session


async def test_a_cell_on_an_overloaded_machine_gets_the_time_that_it_needs_alone(
    busy: tuple[ExecutorClient, Session],
) -> None:
    _, session = busy
    (branch,) = await session.branch(1)
    for each in (session, branch):
        for needed_s in (0.3, 0.4, 0.5, 0.6):
            result = await each.run(BURN.format(needed_s), limits=Limits(wall_time_s=2.0))
            assert (result.outcome, [display.text for display in result.displays]) == (Outcome.FINISHED, ["'done'"])
            if result.wall_time_s > 2.0:
                break  # else it got more of the processors than there was to fear, and has to need more
        assert result.wall_time_s > 2.0


async def test_a_child_of_a_cell_gets_it_too(busy: tuple[ExecutorClient, Session]) -> None:
    _, session = busy
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN.format(0.3)!r}]).returncode"
    result = await session.run(code, limits=Limits(wall_time_s=1.0 + SLOWNESS))
    assert (result.outcome, [display.text for display in result.displays]) == (Outcome.FINISHED, ["0"])


async def test_however_long_it_waits_a_cell_ends_within_the_bound(busy: tuple[ExecutorClient, Session]) -> None:
    _, session = busy
    result = await session.run("while True: pass", limits=Limits(wall_time_s=0.5))
    assert result.outcome is Outcome.TIME_LIMIT
    assert 0.5 <= result.wall_time_s < 0.5 * PATIENCE + 6  # and the 5 s that an interrupt may take on such a machine
    assert [display.text for display in (await session.run("x")).displays] == ["'kept'"]


async def test_who_does_not_wait_for_a_processor_gets_nothing(busy: tuple[ExecutorClient, Session]) -> None:
    """Neither what others wait, nor what this interpreter has waited in cells before, is credited."""
    executor, session = busy
    soon = Limits(wall_time_s=1.0 + SLOWNESS)
    await session.run(BURN.format(0.6), limits=Limits(wall_time_s=60))
    for result in (
        await session.run("import time; time.sleep(60)", limits=soon),
        await executor.execute("import time; time.sleep(60)", limits=soon),
    ):
        assert result.outcome is Outcome.TIME_LIMIT
        assert 1 <= result.wall_time_s / soon.wall_time_s < PATIENCE - 0.5


async def test_memory_in_which_no_interpreter_starts_is_refused_by_name(executor: ExecutorClient) -> None:
    """On a busy machine some, one in a hundred, are killed before they are ready, which is no failure of ours."""

    async def session() -> str:
        try:
            info = await executor.create_session(limits=Limits(memory_bytes=2))
        except InvalidRequest as error:
            return ", ".join(each.field for each in error.fields)
        await executor.delete_session(info.session_id)
        return "made"

    busy = [asyncio.create_task(executor.execute("while True: pass", timeout=8)) for _ in range(3)]
    made = [await asyncio.gather(*(session() for _ in range(8))) for _ in range(8)]
    for each in busy:
        each.cancel()
    assert {one for some in made for one in some} <= {"limits.memory_bytes", "made"}
