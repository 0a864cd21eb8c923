"""Check that there is an executor, before a command begins its work."""

from __future__ import annotations

import pytest

from fairbox.errors import FairboxError
from fairbox.net.ports import free_ports
from rollout.services import _probe
from tests.executor.servers import running


async def test_of_several_executors_one_is_enough() -> None:
    dead, other = (f"127.0.0.1:{port}" for port in free_ports(2))
    with running() as server:
        for target in (server.target, f"{dead}, {server.target}", f"{server.target},{dead}"):
            await _probe(target)
    with pytest.raises(FairboxError, match=f"no executor on {dead},{other}: .*Connection refused"):
        await _probe(f"{dead},{other}")
