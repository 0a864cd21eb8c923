"""Servers that Ray places: they answer while their context is open, and end with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout.engines import EngineUnavailable
from rollout.engines.http import EngineHttp
from rollout.engines.sglang.launch import LaunchConfig
from tests.limiter.ray.cluster import ray_cluster

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster():
        yield


async def test_servers_answer_until_they_are_left(stand_in: Path, tmp_path: Path) -> None:
    from rollout.ray.servers import ray_servers

    async with ray_servers(LaunchConfig(tmp_path, on_cpu=True, python=str(stand_in))) as urls:
        assert list(urls) == ["replica-0"]
        async with EngineHttp(urls["replica-0"]) as server:
            await server.get("/health", timeout_s=5)
    async with EngineHttp(urls["replica-0"]) as server:
        with pytest.raises(EngineUnavailable):
            await server.get("/health", timeout_s=5)


async def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    from rollout.ray.servers import ray_servers

    config = LaunchConfig(tmp_path, on_cpu=True, python=sys.executable, args=("--nonsense",), restarts=0)
    with pytest.raises(EngineUnavailable, match=r"the server ended; its log ends:\n.*sglang"):
        async with ray_servers(config):
            pass
