"""Real sglang servers whose weights are replaced, that are killed, that come back, and that Ray or a router places."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from fairbox.net.ports import free_port
from rollout.engines import DiskWeights, ReplicatedEngine, VersionSpan
from rollout.engines.http import EngineHttp
from rollout.engines.replicas import placement as replicas
from rollout.engines.sglang.engine import SglangEngine
from rollout.engines.sglang.launch import KeptProcess, local_servers
from tests.rollout.engine_contract import (
    CLOSE,
    LONG,
    WeightsContract,
    difference,
    plain_model,
    request,
    running,
    with_weights,
)
from tests.rollout.sglang_servers import listener, on_cpu, sglang_python

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.sglang, pytest.mark.timeout(900)]

VOCABULARY = 49152


@pytest.fixture(autouse=True)
def _fast_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("PROBE_EVERY_S", 0.5), ("PROBE_BACKOFF_S", 0.2), ("PROBE_BACKOFF_MAX_S", 1.0)):
        monkeypatch.setattr(replicas, name, seconds)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def urls(tiny_dir: Path) -> AsyncIterator[dict[str, str]]:
    async with local_servers(on_cpu(tiny_dir, replicas=2, restarts=2)) as urls:
        yield urls


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def weighted(urls: dict[str, str]) -> AsyncIterator[SglangEngine]:
    async with SglangEngine(urls["replica-0"], vocab_size=VOCABULARY) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="module")
async def fresh(weighted: SglangEngine, tiny_dir: Path) -> AsyncIterator[None]:
    async for _ in with_weights(weighted, tiny_dir, "first"):
        yield


class TestWeights(WeightsContract):
    """As every engine."""


def replicated(urls: dict[str, str]) -> ReplicatedEngine:
    engines = {name: SglangEngine(url, vocab_size=VOCABULARY) for name, url in urls.items()}
    return ReplicatedEngine(engines)


async def both_ready(engine: ReplicatedEngine) -> None:
    async with asyncio.timeout(600):
        while not all(view.up for view in engine.replicas()):
            await asyncio.sleep(0.1)


async def test_nothing_is_lost_when_a_server_is_killed_and_it_comes_back_with_the_wanted_weights(
    urls: dict[str, str], tiny_dir: Path, other_tiny_dir: Path
) -> None:
    async with replicated(urls) as engine:
        await engine.update_weights(DiskWeights(other_tiny_dir), version="second")
        await both_ready(engine)  # the second server had no version of ours until now
        wanted = [request((number + 1, 5, 7), max_new_tokens=LONG, seed=number) for number in range(8)]
        tasks = [asyncio.ensure_future(engine.generate(each)) for each in wanted]
        await running(engine, 8)
        assert [view.load for view in engine.replicas()] == [4, 4]
        os.kill(await asyncio.to_thread(listener, urls["replica-1"]), signal.SIGKILL)
        results = await asyncio.gather(*tasks)
        plain = plain_model(other_tiny_dir)
        for asked, result in zip(wanted, results, strict=True):
            assert len(result.ids) == LONG
            assert result.versions == (VersionSpan("second", 0, LONG),)
            assert difference(plain, asked.input_ids, result) < CLOSE
        assert [view.placed for view in engine.replicas()] == [8, 4]
        await both_ready(engine)  # the keeper has started it again, with the weights of its folder
        pair = [request((1, 2, 3), max_new_tokens=4) for _ in range(2)]  # one for each
        for again in await asyncio.gather(*(engine.generate(each) for each in pair)):
            assert again.versions == (VersionSpan("second", 0, 4),)
        await engine.update_weights(DiskWeights(tiny_dir), version="first")


async def test_router_passes_turns_on_and_its_workers_take_the_control_calls(
    urls: dict[str, str], tiny_dir: Path, other_tiny_dir: Path, tmp_path: Path
) -> None:
    probe = await asyncio.create_subprocess_exec(
        sglang_python(), "-c", "import sglang_router", stderr=asyncio.subprocess.DEVNULL
    )
    if await probe.wait():
        pytest.skip("sglang-router is not installed")
    port, workers = free_port(), tuple(urls.values())
    command = [str(sglang_python()), "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-port", str(free_port()), "--policy", "round_robin", "--worker-urls", *workers]
    async with (
        KeptProcess(command, env=os.environ, log=tmp_path / "log") as process,
        EngineHttp(f"http://127.0.0.1:{port}") as router,
    ):
        async with asyncio.timeout(120):
            while True:
                assert not process.ended, process.tail()
                with contextlib.suppress(Exception):
                    if (await router.get("/workers", timeout_s=5))["total"] == 2:
                        break
                await asyncio.sleep(0.2)
        async with SglangEngine(router.url, vocab_size=VOCABULARY, worker_urls=workers) as engine:
            await engine.update_weights(DiskWeights(tiny_dir), version="first")
            tasks = [asyncio.ensure_future(engine.generate(request((n + 1, 2), max_new_tokens=LONG))) for n in range(4)]
            await running(engine, 4)
            await engine.update_weights(DiskWeights(other_tiny_dir), version="second")
            for result in await asyncio.gather(*tasks):
                assert [span.version for span in result.versions] == ["first", "second"]
                assert len(result.ids) == LONG
            limited = await engine.generate(request((1, 2), max_new_tokens=1900, time_limit_s=0.3))
            assert limited.finish == "abort"
            await engine.update_weights(DiskWeights(tiny_dir), version="first")


@pytest.fixture
def ray_cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="ray is not installed (extra `ray`)")
    ray.init(address="local", num_cpus=1, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")  # Ray's own
async def test_ray_starts_servers_and_ends_them(ray_cluster: None, tiny_dir: Path) -> None:
    from rollout.ray.servers import ray_servers

    async with ray_servers(on_cpu(tiny_dir)) as urls, SglangEngine(urls["replica-0"], vocab_size=VOCABULARY) as engine:
        result = await engine.generate(request((1, 2, 3), max_new_tokens=4))
        assert result.versions == (VersionSpan("default", 0, 4),)
        url = urls["replica-0"]
    async with EngineHttp(url) as server:
        with pytest.raises(Exception, match="Connection refused"):
            await server.get("/health", timeout_s=5)
