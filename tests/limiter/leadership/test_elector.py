"""The elector over a record in memory, in simulated time: nothing waits for real, and no slow machine ends a term."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from limiter.leadership import Elector, LeadershipLost, Member, RosterNotKept
from tests.limiter.leadership.memory_records import MemoryRecords
from tests.limiter.sim.loop import SimLoop

DURATION = 0.8
ROSTER = (Member("s1", "executor-0"),)


class LoopClock:
    """The `fairbox.clock.Clock` of the running loop."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()


def simulated(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Runs a test in a loop of its own, on virtual time."""

    @functools.wraps(test)
    def run() -> None:
        loop = SimLoop()
        try:
            loop.run_until_complete(test())
        finally:
            loop.close()

    return run


def elector(records: MemoryRecords, identity: str = "me", *, fresh: bool = False) -> Elector:
    return Elector(records, LoopClock(), identity=identity, duration=DURATION, fresh=fresh)


@contextlib.asynccontextmanager
async def holding(leadership: Elector) -> AsyncIterator[asyncio.Task[None]]:
    """Renews in the background."""
    task = asyncio.create_task(leadership.hold())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, LeadershipLost):
            await task


def remaining(leadership: Elector) -> float:
    return leadership.lead_until - LoopClock().now()


@simulated
async def test_first_leader_renews_and_keeps_the_roster() -> None:
    records = MemoryRecords()
    leadership = elector(records, fresh=True)
    assert leadership.lead_until == float("-inf")
    term = await leadership.campaign()
    assert (term.epoch, term.roster, leadership.leader) == (1, (), "me")
    async with holding(leadership):
        await leadership.store(ROSTER)
        assert records.record is not None
        assert records.record.roster == ROSTER
        await asyncio.sleep(2 * DURATION)
        assert 0 < remaining(leadership) <= 0.98 * DURATION
        assert 6 <= records.writes <= 12


@simulated
async def test_roster_that_the_record_has_no_room_for_ends_no_term() -> None:
    records = MemoryRecords()
    records.room = 1
    leadership = elector(records, fresh=True)
    await leadership.campaign()
    async with holding(leadership) as hold:
        await leadership.store(ROSTER)
        with pytest.raises(RosterNotKept, match="there is no room"):
            await leadership.store((*ROSTER, Member("s2", "executor-1")))
        await asyncio.sleep(2 * DURATION)
        assert not hold.done()
        assert remaining(leadership) > 0
        assert records.record is not None
        assert records.record.roster == ROSTER
        await leadership.store(())
        assert not records.record.roster


@simulated
async def test_second_waits_says_who_leads_and_takes_over_when_the_first_resigns() -> None:
    records = MemoryRecords()
    first, second = elector(records, "a"), elector(records, "b")
    await first.campaign()
    async with holding(first) as hold:
        await first.store(ROSTER)
        campaign = asyncio.create_task(second.campaign())
        await asyncio.sleep(1.5 * DURATION)
        assert not campaign.done()
        assert second.leader == "a"
        await first.resign()
        await first.resign()
        term = await asyncio.wait_for(campaign, 5)
        assert (term.epoch, term.roster) == (2, ROSTER)
        with pytest.raises(LeadershipLost, match="has resigned"):
            await asyncio.wait_for(hold, 5)
    with pytest.raises(LeadershipLost, match="does not lead"):
        await first.store(())


@simulated
async def test_storing_fails_when_it_can_not_be_known_in_time() -> None:
    records = MemoryRecords()
    leadership = elector(records)
    await leadership.campaign()
    records.delay = 10.0
    began = LoopClock().now()
    with pytest.raises(LeadershipLost, match="did not answer in time"):
        await leadership.store(ROSTER)
    assert LoopClock().now() - began >= DURATION * 0.9


@simulated
async def test_many_candidates_and_one_leader_at_a_time() -> None:
    records = MemoryRecords()
    records.delay = 0.005
    epochs: list[int] = []
    leading: list[Elector] = []

    async def candidate(name: str) -> None:
        leadership = elector(records, name)
        epochs.append((await leadership.campaign()).epoch)
        leading.append(leadership)
        assert len(leading) == 1
        async with holding(leadership):
            await asyncio.sleep(0.1)
            leading.remove(leadership)
            await leadership.resign()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(candidate(f"n{number}"))
    assert epochs == [1, 2, 3, 4, 5, 6]


@simulated
async def test_a_cancelled_campaign_leaves_nothing_behind() -> None:
    records = MemoryRecords()
    records.delay = 0.05
    leadership = elector(records)
    campaign = asyncio.create_task(leadership.campaign())
    while records.writes == 0:
        await asyncio.sleep(0.001)
    campaign.cancel()  # the record is written, and the answer on its way
    with pytest.raises(asyncio.CancelledError):
        await campaign
    await leadership.resign()
    assert records.record is not None
    assert records.record.holder == ""
    with pytest.raises(LeadershipLost, match="resigned"):
        await leadership.campaign()


@simulated
async def test_resigning_is_bounded_when_the_store_is_away() -> None:
    records = MemoryRecords()
    leadership = elector(records)
    await leadership.campaign()
    records.away = True
    await asyncio.wait_for(leadership.resign(), 30)
    assert leadership.lead_until == float("-inf")
