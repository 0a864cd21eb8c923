"""Limiters that lead by a Lease, with the settings and the token of their pods, and with the rights that k8s/ gives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from limiter.config import LimiterConfig
from limiter.core.limits import CLOCK_RATE_ERROR
from tests.k8s.limiters import TOKEN, LeaseApi, Pod, leads, lease_api, pod, until_follows, until_leads
from tests.k8s.manifests import Document, of_kind

STARTS_S = 60.0
"""A process that starts, on a machine that does other things."""
SLACK_S = 3.0
"""The same, of one that runs."""
SHORT_S = 3.0
"""A duration that is waited for in less time, and yet bears a machine that does other things."""
FOLLOWED = 1 + 2 * CLOCK_RATE_ERROR
"""Multiple of the duration after which, without a renewal, another leader takes over."""


@pytest.fixture
async def api() -> AsyncIterator[LeaseApi]:
    async with lease_api() as started:
        yield started


@asynccontextmanager
async def _watched(*pods: Pod) -> AsyncIterator[None]:
    """Asks both all the time, and at the end that the one before had stopped when the next one began."""

    async def ask(which: Pod) -> None:
        while True:
            await leads(which)
            await asyncio.sleep(0.1)  # each takes a channel, in the loop that also plays the API server

    tasks = [asyncio.create_task(ask(each)) for each in pods]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    before, after = pods
    assert before.last_led <= after.first_led, "both led at once"


def _lease(api: LeaseApi) -> Document:
    return api.server.leases["fairbox", "limiter"]


async def test_of_two_one_leads_and_the_other_follows_a_lost_one_in_the_documented_time(
    api: LeaseApi, tmp_path: Path
) -> None:
    duration = LimiterConfig().lease_duration_s
    async with pod(api, tmp_path, "limiter-a") as first:
        await until_leads(first, within=STARTS_S)
        epoch = _lease(api)["metadata"]["annotations"]["fairbox.dev/epoch"]
        async with pod(api, tmp_path, "limiter-b") as second, _watched(first, second):
            await asyncio.sleep(FOLLOWED * duration + 1)
            assert await leads(first)
            assert not await leads(second)
            first.process.kill()
            killed = time.monotonic()
            await until_leads(second, within=FOLLOWED * duration + STARTS_S)
            assert time.monotonic() - killed > FOLLOWED * duration * 3 / 4 - 1, "a renewal was not waited for"
            found = _lease(api)
            assert found["spec"]["holderIdentity"] == f"{second.name}_{second.uid}"
            assert int(found["metadata"]["annotations"]["fairbox.dev/epoch"]) > int(epoch)


async def test_two_that_lead_at_once_would_be_seen(api: LeaseApi, tmp_path: Path) -> None:
    async with (
        pod(api, tmp_path, "limiter-a") as first,
        pod(api, tmp_path, "limiter-b", leader="none") as second,
    ):
        with pytest.raises(AssertionError, match="both led at once"):  # noqa: PT012 - it is raised at the end of the watch
            async with _watched(first, second):
                await until_leads(first, within=STARTS_S)
                await until_leads(second, within=STARTS_S)
                await until_leads(first, within=SLACK_S)


async def test_one_that_is_told_to_end_is_followed_at_once(api: LeaseApi, tmp_path: Path) -> None:
    async with pod(api, tmp_path, "limiter-a") as first:
        await until_leads(first, within=STARTS_S)
        async with pod(api, tmp_path, "limiter-b") as second, _watched(first, second):
            await until_follows(second, first, within=STARTS_S)
            first.process.terminate()
            assert await until_leads(second, within=STARTS_S) < LimiterConfig().lease_duration_s
            assert await first.process.wait() == 0


async def test_a_restarted_container_leads_at_once(api: LeaseApi, tmp_path: Path) -> None:
    async with pod(api, tmp_path, "limiter-a", lease_duration_s="60") as first:
        await until_leads(first, within=STARTS_S)
        first.process.kill()
        await first.process.wait()
    async with pod(api, tmp_path, "limiter-a", uid=first.uid, lease_duration_s="60") as again:
        await until_leads(again, within=STARTS_S)


async def test_one_that_is_cut_off_stops_before_the_other_begins(api: LeaseApi, tmp_path: Path) -> None:
    settings = {"lease_duration_s": str(SHORT_S)}
    async with pod(api, tmp_path, "limiter-a", **settings) as first:
        await until_leads(first, within=STARTS_S)
        async with pod(api, tmp_path, "limiter-b", **settings) as second, _watched(first, second):
            await asyncio.sleep(SHORT_S)
            first.cut()
            cut = time.monotonic()
            await until_leads(second, within=STARTS_S)
            async with asyncio.timeout(STARTS_S):
                assert await first.process.wait() == 1
            assert first.last_led < cut + SHORT_S
            assert first.last_led > cut, "it had stopped before it was cut off"
            assert "leads in epoch" in first.log.read_text()


async def test_when_the_api_server_is_away_for_a_moment_nothing_happens(api: LeaseApi, tmp_path: Path) -> None:
    async with pod(api, tmp_path, "limiter-a") as first:
        await until_leads(first, within=STARTS_S)
        first.cut()
        await asyncio.sleep(2.0)
        assert await leads(first)
        first.proxy.heal()
        await asyncio.sleep(LimiterConfig().lease_duration_s)
        assert await leads(first)
        assert first.process.returncode is None


async def test_every_right_is_used_and_no_other_is_asked_for(api: LeaseApi, tmp_path: Path) -> None:
    async with pod(api, tmp_path, "limiter-a", lease_duration_s=str(SHORT_S)) as first:
        await until_leads(first, within=STARTS_S)
        await asyncio.sleep(SHORT_S)
        first.process.terminate()
        assert await first.process.wait() == 0
    leases = "/apis/coordination.k8s.io/v1/namespaces/fairbox/leases"
    assert set(api.server.requests) == {f"POST {leases}", f"GET {leases}/limiter", f"PUT {leases}/limiter"}
    granted = {(verb, *rule.get("resourceNames", ())) for rule in of_kind("Role")[0]["rules"] for verb in rule["verbs"]}
    assert granted == {("create",), ("get", "limiter"), ("update", "limiter")}


@pytest.mark.parametrize("verb", ["create", "get", "update"])
async def test_without_one_of_its_rights_it_does_not_lead(verb: str, api: LeaseApi, tmp_path: Path) -> None:
    api.server.forbidden = {verb}
    async with pod(api, tmp_path, "limiter-a", lease_duration_s=str(SHORT_S)) as first:
        async with asyncio.timeout(STARTS_S):
            while f"cannot {verb} resource" not in first.log.read_text():
                await asyncio.sleep(0.05)
        if verb == "update":  # it could lead without ever renewing, for as long as nobody else may
            async with asyncio.timeout(STARTS_S):
                assert await first.process.wait() == 1
        else:
            await asyncio.sleep(SHORT_S)
            assert first.first_led == float("inf")
            assert not await leads(first)


@pytest.mark.soak
async def test_a_token_that_the_node_renews_is_read_again(api: LeaseApi, tmp_path: Path) -> None:
    """The library keeps a token for a minute, and a node renews one long before it ends."""
    async with pod(api, tmp_path, "limiter-a", lease_duration_s=str(SHORT_S)) as first:
        await until_leads(first, within=STARTS_S)
        api.server.tokens.add("renewed")
        (first.account / "token").write_text("renewed", encoding="utf-8")
        await asyncio.sleep(75)
        api.server.tokens.remove(TOKEN)
        await asyncio.sleep(10)
        assert await leads(first)
        assert first.process.returncode is None, first.log.read_text()
