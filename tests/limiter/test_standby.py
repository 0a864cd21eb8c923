"""STANDBY: one word to those that asked for it when their grant is near."""

from __future__ import annotations

import asyncio

from limiter import LimiterClient
from limiter.core import BucketLimits
from limiter.core.effects import Effect, Granted, Queued, Standby
from limiter.core.events import Acquire, Cancel, Configure, Disconnect, Hello, Release
from limiter.core.reasons import BucketOrder, SessionKind
from limiter.inprocess import InProcessLimiter
from tests.limiter.cores import make_core, only
from tests.limiter.servers import limiter_server, queued


def told(effects: list[Effect]) -> list[tuple[str, int]]:
    return [(each.request_id, each.position) for each in effects if isinstance(each, Standby)]


def test_those_that_are_next_are_told_once() -> None:
    core = make_core(2)
    leases = [only(Granted, core.handle(Acquire("c", f"h{number}"), 0.0)).lease for number in range(2)]
    words = [told(core.handle(Acquire("d", f"r{number}", standby=True), 0.0)) for number in range(5)]
    assert words == [[("r0", 0)], [("r1", 1)], [], [], []]
    assert told(core.handle(Release("c", leases[0]), 0.0)) == [("r2", 1)]
    assert told(core.handle(Cancel("d", "r1"), 0.0)) == [("r3", 1)]
    assert told(core.handle(Cancel("d", "r4"), 0.0)) == []
    assert core._ledger.buckets["code"].untold == 0


def test_only_those_that_ask_are_told_and_after_they_are_queued() -> None:
    core = make_core(1)
    core.handle(Acquire("c", "held", standby=True), 0.0)
    effects = core.handle(Acquire("c", "quiet"), 0.0)
    assert told(effects) == []
    core.handle(Cancel("c", "quiet"), 0.0)
    assert [type(each) for each in core.handle(Acquire("c", "loud", standby=True), 0.0)] == [Queued, Standby]


def test_many_are_told_at_most_64_ahead() -> None:
    core = make_core(100, max_queued=1000, max_queued_per_client=1000)
    core.handle(Acquire("c", "all", tokens=100), 0.0)
    words = [told(core.handle(Acquire("d", f"r{number}", standby=True), 0.0)) for number in range(100)]
    assert sum(len(each) for each in words) == 64


def test_a_raised_limit_and_the_end_of_a_pause_bring_more_near() -> None:
    core = make_core(1, paused=True)
    words = [told(core.handle(Acquire("d", f"r{number}", standby=True), 0.0)) for number in range(4)]
    assert words == [[], [], [], []]
    effects = core.handle(Configure(BucketLimits("code", 1), 1), 0.0)
    assert told(effects) == [("r1", 0)]
    assert told(core.handle(Configure(BucketLimits("code", 2), 2), 0.0)) == [("r2", 0), ("r3", 1)]


def test_a_lost_stream_brings_others_near_and_tells_nobody_twice() -> None:
    core = make_core(1, order=BucketOrder.FAIR_BY_TENANT)
    core.handle(Acquire("d", "held"), 0.0)
    ticket = only(Queued, core.handle(Acquire("c", "r0", standby=True), 0.0)).ticket
    core.handle(Acquire("d", "r1", standby=True), 0.0)
    assert told(core.handle(Disconnect("c"), 0.0)) == [("r1", 0)]
    back = (Acquire("c", "r0", ticket=ticket, standby=True),)
    assert told(core.handle(Hello("c", SessionKind.CLIENT, queued=back), 0.0)) == []


async def test_a_client_is_called_once_over_the_network() -> None:
    async with limiter_server(1) as server, LimiterClient(server.address) as client:
        words: dict[str, list[int]] = {"first": [], "second": []}

        async def use(name: str) -> None:
            async with client.lease(on_standby=words[name].append):
                assert words[name] == [0]

        async with client.lease():
            tasks = [asyncio.create_task(use("first"))]
            await queued(server, 1)
            tasks.append(asyncio.create_task(use("second")))
            await queued(server, 2)
            assert words["second"] == []
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert words == {"first": [0], "second": [0]}


async def test_a_callback_that_fails_harms_nobody() -> None:
    def fail(position: int) -> None:
        raise RuntimeError(f"at {position}")

    async with InProcessLimiter({"code": 1}) as limiter, limiter.client() as client:
        async with client.lease():
            waiter = asyncio.create_task(client.lease(on_standby=fail).__aenter__())
            await asyncio.sleep(0.05)
        await asyncio.wait_for(waiter, 5)
