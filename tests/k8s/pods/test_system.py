"""The whole system from its images and manifests."""

from __future__ import annotations

import pytest

from tests.k8s.pods.conftest import applied
from tests.k8s.pods.node import Node

pytestmark = [pytest.mark.pods, pytest.mark.timeout(300)]


async def test_everything_becomes_ready(node: Node) -> None:
    node.apply(applied())
    await node.settled()
    assert len(node.of("executor")) == 2
    assert len(node.of("limiter")) == 1
