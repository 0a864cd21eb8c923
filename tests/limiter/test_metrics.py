"""Metrics of a limiter, as Prometheus reads them over HTTP."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairbox.clock import MonotonicClock
from fairbox.errors import ConfigError, FairboxError
from fairbox.net.metrics import MetricsServer
from limiter import ExecutorSession, LimiterClient, QueueTimeout
from limiter.core import Timing
from limiter.leadership import Alone
from limiter.server.leader_term import LeaderTerm
from limiter.server.metrics import limiter_metrics
from tests.limiter.servers import ANYWHERE, limiter_server

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(address: str) -> Samples:
    """Every sample, by name and labels."""

    def read() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
            return str(answer.read(), "utf-8")

    families = text_string_to_metric_families(await asyncio.to_thread(read))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def of_bucket(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"fairbox_limiter_{name}", tuple(sorted({"bucket": "code", **labels}.items()))]


async def test_figures_are_those_of_the_moment() -> None:
    async with (
        limiter_server(2, metrics_listen=ANYWHERE) as server,
        LimiterClient(server.address) as client,
        ExecutorSession(server.address) as executor,
        client.lease() as bound,
        client.lease(),
    ):
        await executor.bind(bound)
        with pytest.raises(QueueTimeout):
            await client.lease(queue_timeout=0.05).__aenter__()
        waiter = asyncio.create_task(client.lease().__aenter__())
        while not server.statistics().queued:
            await asyncio.sleep(0.005)
        found = await scrape(server.metrics_address)
        whole = {name: value for (name, labels), value in found.items() if not labels}
        assert whole["fairbox_limiter_up"] == 1
        assert whole["fairbox_limiter_leader"] == 1
        assert whole["fairbox_limiter_epoch"] == server.statistics().epoch
        assert whole["fairbox_limiter_recovering"] == 0
        assert whole["process_resident_memory_bytes"] > 1e7
        assert found["fairbox_limiter_sessions", (("kind", "executor"),)] == 1
        assert found["fairbox_limiter_sessions", (("kind", "client"),)] == 1
        expected = {"limit": 2, "held": 2, "bound": 1, "queued": 1, "granted_total": 2, "rejected_total": 1}
        assert {name: of_bucket(found, name) for name in expected} == expected
        assert of_bucket(found, "oldest_wait_seconds") > 0
        assert of_bucket(found, "grants_per_second") > 0
        assert of_bucket(found, "wait_seconds", quantile="0.99") >= of_bucket(found, "wait_seconds", quantile="0.5")
        executor.release(bound)
        await asyncio.wait_for(waiter, 5)
        found = await scrape(server.metrics_address)
        assert of_bucket(found, "released_total", outcome="ok") == 1
        assert of_bucket(found, "released_total", outcome="error") == 0


async def test_a_limiter_that_does_not_lead_says_so_and_nothing_else() -> None:
    term = LeaderTerm(Alone(), MonotonicClock(), buckets=[], timing=Timing())
    async with MetricsServer(ANYWHERE, lambda: limiter_metrics(term), prefix="fairbox_limiter") as metrics:
        found = await scrape(metrics.address)
        ours = {name: value for (name, _), value in found.items() if name.startswith("fairbox_")}
        assert ours.pop("fairbox_limiter_loop_delay_seconds") >= 0
        assert ours == {"fairbox_limiter_up": 1, "fairbox_limiter_leader": 0}


async def test_a_loop_that_is_too_busy_to_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairbox.net.metrics._ANSWER_WITHIN_S", 0.05)
    async with MetricsServer(ANYWHERE, list, prefix="x") as metrics:
        with ThreadPoolExecutor(1) as aside:
            reading = aside.submit(asyncio.run, scrape(metrics.address))
            assert reading.result(60)["x_up", ()] == 0  # this loop stands still until then
        monkeypatch.undo()
        assert (await scrape(metrics.address))["x_up", ()] == 1


async def test_addresses_follow_the_rules_of_the_other_ports() -> None:
    with pytest.raises(ConfigError, match=r"metrics_listen is '0\.0\.0\.0:0', which is not loopback"):
        MetricsServer("0.0.0.0:0", list, prefix="x")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(FairboxError, match=f"metrics_listen: can't listen on {address}: Address already in use"):
            async with MetricsServer(address, list, prefix="x"):
                pass
