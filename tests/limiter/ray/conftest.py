"""One Ray cluster for all these tests, started for the first one that needs it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.limiter.ray.cluster import RayCluster, ray_cluster
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
