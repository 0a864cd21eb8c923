"""Limiters that lead by a Lease, with the rights that k8s/ gives them, at an API server that gives them no other."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from limiter.config import LimiterConfig
from limiter.core.timing import CLOCK_RATE_ERROR
from tests.k8s.conftest import Cluster
from tests.k8s.limiters import Pod, leads, pod, until_leads
from tests.k8s.manifests import FOLDER, Document, of_kind

STARTS_S = 30.0
"""A process that starts, on a machine that does other things."""
SLACK_S = 3.0
"""The same, of one that runs."""
SHORT_S = 3.0
"""A duration that is waited for in less time, and yet bears a machine that does other things."""
FOLLOWED = 1 + 2 * CLOCK_RATE_ERROR
"""Of the duration: after that long without a renewal, a leader is followed."""


async def _applied(cluster: Cluster) -> None:
    for file in ("00-namespaces.yaml", "20-limiter.yaml"):
        await cluster.kubectl.ok("apply", "-f", str(FOLDER / file))


@asynccontextmanager
async def _watched(*pods: Pod) -> AsyncIterator[None]:
    """Asks both all the time, and at the end that the one before had stopped when the next one began."""

    async def ask(which: Pod) -> None:
        while True:
            await leads(which)
            await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(ask(each)) for each in pods]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    before, after = pods
    assert before.last_led <= after.first_led, "both led at once"


async def _lease(cluster: Cluster) -> Document:
    found = await cluster.kubectl.ok("-n", "fairbox", "get", "lease", "limiter", "-o", "json")
    return dict(json.loads(found.out))


async def test_of_two_one_leads_and_the_other_follows_a_lost_one_in_the_documented_time(
    cluster: Cluster, tmp_path: Path
) -> None:
    await _applied(cluster)
    duration = LimiterConfig().lease_duration_s
    async with pod(cluster.server, tmp_path, "limiter-a") as first:
        await until_leads(first, within=STARTS_S)
        epoch = (await _lease(cluster))["metadata"]["annotations"]["fairbox.dev/epoch"]
        async with pod(cluster.server, tmp_path, "limiter-b") as second, _watched(first, second):
            await asyncio.sleep(FOLLOWED * duration + 1)
            assert await leads(first)
            assert not await leads(second)
            first.process.kill()
            killed = time.monotonic()
            await until_leads(second, within=FOLLOWED * duration + SLACK_S)
            assert time.monotonic() - killed > FOLLOWED * duration * 3 / 4 - 1, "a renewal was not waited for"
            found = await _lease(cluster)
            assert found["spec"]["holderIdentity"] == f"{second.name}_{second.uid}"
            assert int(found["metadata"]["annotations"]["fairbox.dev/epoch"]) > int(epoch)


async def test_two_that_lead_at_once_would_be_seen(cluster: Cluster, tmp_path: Path) -> None:
    await _applied(cluster)
    async with (
        pod(cluster.server, tmp_path, "limiter-a") as first,
        pod(cluster.server, tmp_path, "limiter-b", leader="none") as second,
    ):
        with pytest.raises(AssertionError, match="both led at once"):  # noqa: PT012 - it is raised at the end of the watch
            async with _watched(first, second):
                await until_leads(first, within=STARTS_S)
                await until_leads(second, within=STARTS_S)
                await until_leads(first, within=SLACK_S)


async def test_one_that_is_told_to_end_is_followed_at_once(cluster: Cluster, tmp_path: Path) -> None:
    await _applied(cluster)
    async with pod(cluster.server, tmp_path, "limiter-a") as first:
        await until_leads(first, within=STARTS_S)
        async with pod(cluster.server, tmp_path, "limiter-b") as second, _watched(first, second):
            await asyncio.sleep(SLACK_S)
            first.process.terminate()
            assert await until_leads(second, within=STARTS_S) < LimiterConfig().lease_duration_s
            assert await first.process.wait() == 0


async def test_a_restarted_container_leads_at_once(cluster: Cluster, tmp_path: Path) -> None:
    await _applied(cluster)
    async with pod(cluster.server, tmp_path, "limiter-a", lease_duration_s="60") as first:
        await until_leads(first, within=STARTS_S)
        first.process.kill()
        await first.process.wait()
    async with pod(cluster.server, tmp_path, "limiter-a", uid=first.uid, lease_duration_s="60") as again:
        await until_leads(again, within=STARTS_S)


async def test_one_that_is_cut_off_stops_before_the_other_begins(cluster: Cluster, tmp_path: Path) -> None:
    await _applied(cluster)
    settings = {"lease_duration_s": str(SHORT_S)}
    async with pod(cluster.server, tmp_path, "limiter-a", **settings) as first:
        await until_leads(first, within=STARTS_S)
        async with pod(cluster.server, tmp_path, "limiter-b", **settings) as second, _watched(first, second):
            await asyncio.sleep(SHORT_S)
            first.cut()
            cut = time.monotonic()
            await until_leads(second, within=FOLLOWED * SHORT_S + SLACK_S)
            async with asyncio.timeout(SLACK_S):
                assert await first.process.wait() == 1
            assert first.last_led < cut + SHORT_S
            assert first.last_led > cut, "it had stopped before it was cut off"
            assert "leads in epoch" in first.log.read_text()


async def test_when_the_api_server_is_away_for_a_moment_nothing_happens(cluster: Cluster, tmp_path: Path) -> None:
    await _applied(cluster)
    async with pod(cluster.server, tmp_path, "limiter-a") as first:
        await until_leads(first, within=STARTS_S)
        first.cut()
        await asyncio.sleep(2.0)
        assert await leads(first)
        first.proxy.heal()
        await asyncio.sleep(LimiterConfig().lease_duration_s)
        assert await leads(first)
        assert first.process.returncode is None


async def test_every_right_is_used_and_no_other_is_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    await _applied(cluster)
    cluster.server.requests.clear()
    async with pod(cluster.server, tmp_path, "limiter-a", lease_duration_s=str(SHORT_S)) as first:
        await until_leads(first, within=STARTS_S)
        await asyncio.sleep(SHORT_S)
        first.process.terminate()
        assert await first.process.wait() == 0
    leases = "/apis/coordination.k8s.io/v1/namespaces/fairbox/leases"
    assert set(cluster.server.requests) == {f"POST {leases}", f"GET {leases}/limiter", f"PUT {leases}/limiter"}
    granted = {(verb, *rule.get("resourceNames", ())) for rule in of_kind("Role")[0]["rules"] for verb in rule["verbs"]}
    assert granted == {("create",), ("get", "limiter"), ("update", "limiter")}


@pytest.mark.parametrize("verb", ["create", "get", "update"])
async def test_without_one_of_its_rights_it_does_not_lead(verb: str, cluster: Cluster, tmp_path: Path) -> None:
    await _applied(cluster)
    role = copy.deepcopy(of_kind("Role")[0])
    for rule in role["rules"]:
        rule["verbs"] = [each for each in rule["verbs"] if each != verb]
    role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
    await cluster.kubectl.ok("apply", "-f", "-", stdin=json.dumps(role))
    async with pod(cluster.server, tmp_path, "limiter-a", lease_duration_s=str(SHORT_S)) as first:
        async with asyncio.timeout(STARTS_S):
            while f"cannot {verb} resource" not in first.log.read_text():
                await asyncio.sleep(0.05)
        if verb == "update":  # it could lead without ever renewing, for as long as nobody else may
            async with asyncio.timeout(SHORT_S + SLACK_S):
                assert await first.process.wait() == 1
        else:
            await asyncio.sleep(SHORT_S)
            assert first.first_led == float("inf")
            assert not await leads(first)


async def test_without_a_binding_nobody_leads_and_the_log_says_why(cluster: Cluster, tmp_path: Path) -> None:
    await _applied(cluster)
    await cluster.kubectl.ok("-n", "fairbox", "delete", "rolebinding", "limiter")
    async with pod(cluster.server, tmp_path, "limiter-a", lease_duration_s=str(SHORT_S)) as first:
        async with asyncio.timeout(STARTS_S):
            while 'User "system:serviceaccount:fairbox:limiter" cannot get' not in first.log.read_text():
                await asyncio.sleep(0.05)
        assert not await leads(first)


@pytest.mark.soak
async def test_a_token_that_the_node_renews_is_read_again(cluster: Cluster, tmp_path: Path) -> None:
    """The library keeps a token for a minute, and a node renews one long before it ends."""
    await _applied(cluster)
    async with pod(cluster.server, tmp_path, "limiter-a", lease_duration_s=str(SHORT_S)) as first:
        (first.account / "token").write_text(cluster.server.pod_token("fairbox", "limiter", 75), encoding="utf-8")
        await until_leads(first, within=STARTS_S)
        (first.account / "token").write_text(cluster.server.pod_token("fairbox", "limiter", 3600), encoding="utf-8")
        await asyncio.sleep(85)
        assert await leads(first)
        assert first.process.returncode is None, first.log.read_text()
