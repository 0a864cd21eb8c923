"""Leading by a Lease object, over HTTP, against a server that answers as an API server does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from kubernetes_asyncio.client import Configuration

from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import ConfigError
from fairbox.testing import ManualClock
from limiter.leadership import Conflict, Elector, LeadershipLost, Member, Record, StoreUnavailable
from limiter.leadership.kubernetes import LeaseRecords, in_cluster, pod_identity, pod_namespace
from limiter.leadership.term import wall_epoch
from tests.limiter.leadership.lease_server import LeaseServer

ROSTER = (Member("s1", "executor-0"), Member("s2", 'na"me'))
KEY = ("fairbox", "limiter")
DURATION = 1.0
_TICK_S = 0.01


@asynccontextmanager
async def lease_of(url: str, namespace: str = "fairbox") -> AsyncIterator[LeaseRecords]:
    def configuration() -> Configuration:
        return Configuration(host=url)

    records = LeaseRecords(namespace, "limiter", configuration)
    try:
        yield records
    finally:
        await records.close()


@asynccontextmanager
async def patient_clock() -> AsyncIterator[Clock]:
    """A clock that stands still while this process waits for a processor, so that no such wait ends a term."""
    clock = ManualClock()

    async def tick() -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            clock.advance(_TICK_S)

    ticking = asyncio.create_task(tick())
    try:
        yield clock
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])


@asynccontextmanager
async def candidate(server: LeaseServer, identity: str, clock: Clock | None = None) -> AsyncIterator[Elector]:
    async with lease_of(server.url) as records:
        leadership = Elector(
            records, clock or MonotonicClock(), identity=identity, duration=DURATION, epoch_from=wall_epoch
        )
        try:
            yield leadership
        finally:
            await leadership.resign()


async def test_the_record_survives_the_way_into_the_lease_and_back() -> None:
    async with LeaseServer() as server, lease_of(server.url) as records:
        assert await records.read() is None
        record = Record("pod-0_uid", 1795375000123, 5.5, "1.1", ROSTER)
        written = await records.write(record, None)
        assert written == replace(record, version="101")
        assert await records.read() == replace(written, duration=6.0)
        spec = server.leases[KEY]["spec"]
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("pod-0_uid", 6, 1)
        with pytest.raises(Conflict):
            await records.write(record, None)
        with pytest.raises(Conflict):
            await records.write(record, "100")
        released = await records.write(replace(record, holder="", roster=None), "101")
        assert await records.read() == replace(released, duration=6.0)
        del server.leases[KEY]
        with pytest.raises(Conflict):
            await records.write(record, released.version)
        assert await records.read() is None


async def test_what_belongs_to_others_is_kept() -> None:
    async with LeaseServer() as server, lease_of(server.url) as records:
        metadata = {"resourceVersion": "7", "labels": {"a": "b"}, "annotations": {"c": "d"}, "managedFields": [{}]}
        server.leases[KEY] = {"metadata": metadata, "spec": {}}
        found = await records.read()
        assert found == Record("", 1, 0.0, "None", None, "7")
        await records.write(replace(found, holder="me", epoch=2, duration=6.0, renewal="2.1"), "7")
        lease = server.leases[KEY]
        assert lease["metadata"]["labels"] == {"a": "b"}
        assert lease["metadata"]["annotations"]["c"] == "d"
        assert "managedFields" not in lease["metadata"]
        first = lease["spec"]
        again = await records.write(replace(found, holder="me", epoch=2, duration=6.0, renewal="2.2"), "101")
        second = server.leases[KEY]["spec"]
        assert (second["acquireTime"], second["leaseTransitions"]) == (first["acquireTime"], 1)
        assert second["renewTime"] >= first["renewTime"]
        assert again.version == "102"


async def test_damage_by_hand_is_never_taken_for_knowledge() -> None:
    async with LeaseServer() as server, lease_of(server.url) as records:
        await records.write(Record("me", 3, 6.0, "3.1", ROSTER, key=b"k" * 32), None)
        annotations = server.leases[KEY]["metadata"]["annotations"]
        found = await records.read()
        assert found is not None
        assert (found.roster, found.key) == (ROSTER, b"k" * 32)
        annotations["fairbox.dev/roster"], annotations["fairbox.dev/key"] = "[[", "kk"
        found = await records.read()
        assert found is not None
        assert (found.roster, found.key) == (None, b"")
        annotations["fairbox.dev/epoch"] = "three"
        with pytest.raises(ConfigError, match=r"Lease fairbox/limiter: annotation fairbox\.dev/epoch is 'three'"):
            await records.read()


async def test_a_large_roster_loses_its_names_and_then_is_refused() -> None:
    async with LeaseServer() as server, lease_of(server.url) as records:
        roster = tuple(Member(f"{number:036}", "executor-" * 5) for number in range(4_000))
        await records.write(Record("me", 3, 6.0, "3.1", roster), None)
        found = await records.read()
        assert found is not None
        assert found.roster == tuple(Member(member.session_id, "") for member in roster)
        with pytest.raises(StoreUnavailable, match="8000 executors are more than a Lease has room for"):
            await records.write(Record("me", 3, 6.0, "3.2", roster * 2), found.version)


async def test_failures_say_what_failed() -> None:
    async with LeaseServer() as server, lease_of(server.url) as records:
        for server.status in (500, 403, 429):
            with pytest.raises(StoreUnavailable, match=f"the API server answered {server.status}: as the test wants"):
                await records.read()
        server.status = 0
        async with lease_of(server.url, "nowhere") as lost:
            with pytest.raises(StoreUnavailable, match='404: namespaces "nowhere" not found'):
                await lost.write(Record("me", 1, 6.0, "1.1", None), None)
        server.silent = True
        with pytest.raises(StoreUnavailable, match="can't be asked"):
            await records.write(Record("me", 1, 6.0, "1.1", None), None)
        server.silent = False
        assert await records.read() is not None
    async with lease_of(server.url) as records:
        with pytest.raises(StoreUnavailable, match="can't be asked: Cannot connect"):
            await records.read()


async def test_a_restarted_container_follows_itself_at_once() -> None:
    async with LeaseServer() as server:
        async with candidate(server, "pod-a_uid") as first:
            epoch = (await first.campaign()).epoch
            assert abs(epoch - time.time() * 1000) < 60_000
            dead = dict(server.leases)
        server.leases.update(dead)  # it was killed, and so did not resign
        server.leases[KEY]["metadata"]["resourceVersion"] = "999"
        async with candidate(server, "pod-a_uid") as second:
            assert (await second.campaign()).epoch > epoch


@pytest.mark.parametrize("fault", ["slow", "500", "silent"])
async def test_a_bad_quarter_is_survived_and_a_bad_term_is_not(fault: str) -> None:
    def set_fault(on: bool) -> None:
        server.delay = 30.0 if on and fault == "slow" else 0.0
        server.status = 500 if on and fault == "500" else 0
        server.silent = on and fault == "silent"

    async with (
        LeaseServer() as server,
        patient_clock() as clock,
        candidate(server, "pod-a", clock) as leadership,
    ):
        await leadership.campaign()
        hold = asyncio.create_task(leadership.hold())
        set_fault(True)
        await asyncio.sleep(0.45 * DURATION)
        set_fault(False)
        await asyncio.sleep(0.7 * DURATION)
        assert leadership.lead_until > clock.now()
        set_fault(True)
        until = leadership.lead_until + DURATION
        with pytest.raises(LeadershipLost, match="could not renew in time"):
            await asyncio.wait_for(hold, 60)
        assert clock.now() < until + DURATION
        set_fault(False)


async def test_conflicts_by_a_bystander_are_no_loss() -> None:
    async with (
        LeaseServer() as server,
        patient_clock() as clock,
        candidate(server, "pod-a", clock) as leadership,
    ):
        await leadership.campaign()
        hold = asyncio.create_task(leadership.hold())
        for number in range(10):
            server.leases[KEY]["metadata"]["resourceVersion"] = f"9{number}"
            await asyncio.sleep(0.2 * DURATION)
        assert leadership.lead_until > clock.now()
        assert not hold.done()
        del server.leases[KEY]
        with pytest.raises(LeadershipLost, match="was deleted"):
            await asyncio.wait_for(hold, 60)


def test_identity_is_that_of_the_pod() -> None:
    pod = {"POD_NAME": "limiter-0", "POD_UID": "u-1", "POD_NAMESPACE": "fairbox"}
    assert pod_identity(pod) == pod_identity(pod) == "limiter-0_u-1"
    assert pod_identity({"POD_NAME": "limiter-0"}) != pod_identity({"POD_NAME": "limiter-0"})
    assert pod_namespace(pod) == "fairbox"
    with pytest.raises(ConfigError, match="POD_NAMESPACE is not set"):
        pod_namespace({})


def test_outside_of_a_pod_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="leader is 'k8s', which needs a pod with a service account's token"):
        in_cluster()
