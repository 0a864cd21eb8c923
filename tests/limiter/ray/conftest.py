"""One Ray cluster for all these tests, started for the first one that needs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.limiter.ray.cluster import RayCluster, ray_cluster


@pytest.fixture(scope="package")
def cluster() -> Iterator[RayCluster]:
    """A local Ray cluster of one node."""
    pytest.importorskip("ray", reason="ray is not installed (extra `ray`)")
    with ray_cluster() as started:
        yield started
