"""The applied system, as containers. Skipped with the reason where podman, root or the images are missing."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.k8s.manifests import load_all
from tests.k8s.pods.node import Node
from tests.k8s.pods.objects import Document
from tests.k8s.pods.podman import unusable

IMAGES = tuple(f"localhost/fairbox/{tier}:dev" for tier in ("limiter", "executor", "rollout"))


def applied() -> list[Document]:
    """k8s/, each time afresh."""
    return copy.deepcopy(load_all())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """An empty node."""
    if reason := unusable(IMAGES):
        pytest.skip(reason)
    async with Node(tmp_path) as started:
        yield started
