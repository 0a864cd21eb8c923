"""One incarnation of the actor after the other, over the store of a real Ray cluster."""

from __future__ import annotations

import asyncio

import pytest

from fairbox.clock import MonotonicClock
from limiter.leadership import LeadershipLost, Member

pytest.importorskip("ray", reason="ray is not installed (extra `ray`)")

from limiter.ray.leadership import ClusterLeadership
from limiter.ray.settings import NAMESPACE
from limiter.ray.store import ClusterStore

pytestmark = pytest.mark.usefixtures("cluster")
LEASE = 0.5
CLOCK = MonotonicClock()
X = Member("x", "executor x")


async def test_later_one_leads_when_the_one_before_provably_does_not() -> None:
    store = ClusterStore(NAMESPACE, "leadership")
    first = ClusterLeadership(store, CLOCK, node="here", lease=LEASE)
    term = await first.campaign()
    assert (term.epoch, term.roster) == (1, ())
    await first.store([X])
    holding = asyncio.create_task(first.hold())
    await asyncio.sleep(1.5 * LEASE)
    assert first.lead_until > CLOCK.now(), "it is renewed"

    second = ClusterLeadership(store, CLOCK, node="elsewhere", lease=LEASE)
    started = CLOCK.now()
    term = await second.campaign()
    assert (term.epoch, term.roster) == (2, (X,))
    assert CLOCK.now() - started > LEASE
    assert first.lead_until <= CLOCK.now() < second.lead_until
    with pytest.raises(LeadershipLost, match="epoch 2 has begun elsewhere"):
        await holding
    with pytest.raises(LeadershipLost):
        await first.store([])


async def test_dead_process_of_the_same_machine_is_not_waited_for() -> None:
    store = ClusterStore(NAMESPACE, "dead")
    await store.claim("epoch.1", b"here 4194305 12345")  # no process has such a number
    started = CLOCK.now()
    term = await ClusterLeadership(store, CLOCK, node="here", lease=5.0).campaign()
    assert (term.epoch, term.roster) == (2, ())
    assert CLOCK.now() - started < 2.5


async def test_unreachable_store_ends_the_term() -> None:
    class Gone(ClusterStore):
        async def get(self, key: str) -> bytes | None:
            raise ConnectionError("no store")

    leader = ClusterLeadership(ClusterStore(NAMESPACE, "gone"), CLOCK, node="here", lease=LEASE)
    await leader.campaign()
    leader._store = Gone(NAMESPACE, "gone")
    with pytest.raises(LeadershipLost, match="the cluster's store can't be reached: ConnectionError"):
        await asyncio.wait_for(leader.hold(), 10)
    assert CLOCK.now() >= leader.lead_until
    with pytest.raises(LeadershipLost, match="the roster can't be kept"):
        await leader.store([X])
