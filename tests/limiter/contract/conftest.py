"""One limiter per host for all these tests; the Ray cluster is started for the first test that needs it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.limiter.contract.cluster import RayCluster, ray_cluster
from tests.limiter.contract.hosts import TIMING, Host, InProcessHost, RayHost, buckets, grpc_host, settings
from tests.limiter.inprocess import InProcessLimiter
from tests.limiter.servers import ROOT


@pytest.fixture(scope="package")
def cluster() -> Iterator[RayCluster]:
    """A local Ray cluster of one node."""
    pytest.importorskip("ray", reason="ray is not installed (extra `ray`)")
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{path}"  # for the cluster's workers
    try:
        with ray_cluster() as started:
            yield started
    finally:
        os.environ["PYTHONPATH"] = path


@pytest.fixture(scope="package")
def grpc_limiter() -> Iterator[Host]:
    """A limiter's process."""
    with grpc_host() as host:
        yield host


@pytest.fixture(scope="package")
def ray_limiter(cluster: RayCluster) -> Host:
    """A limiter's actor."""
    from limiter.ray import RayLimiter

    async def make() -> str:
        async with RayLimiter(settings=settings(), name="contract") as limiter:
            return limiter.admin_address

    # In a thread: this one may be running a loop.
    with ThreadPoolExecutor(1) as thread:
        return RayHost(cluster.address, "contract", thread.submit(lambda: asyncio.run(make())).result(120))


@pytest.fixture(params=["inprocess", "grpc", "ray"])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    """Each host in turn."""
    if request.param != "inprocess":
        yield request.getfixturevalue(f"{request.param}_limiter")
        return
    limits = {bucket.name: bucket for bucket in buckets()}
    async with InProcessLimiter(limits, timing=TIMING) as limiter:
        yield InProcessHost(limiter)
