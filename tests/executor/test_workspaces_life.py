"""Workspaces where nothing can be mounted."""

from __future__ import annotations

import pytest

from executor_service import ExecutorClient, ExecutorUnavailable, Program
from tests.executor.levels import LEVELS, Level


@pytest.mark.parametrize("level", [level for level in LEVELS if level.landlock], ids=str)
async def test_without_mounts_workspaces_are_not_offered(level: Level) -> None:
    with level.running("max_concurrent=1") as server:
        async with ExecutorClient(server.target) as executor:
            with pytest.raises(ExecutorUnavailable, match="isolation level namespaces"):
                await executor.prepare_workspace(bundle=b"bundle", commit="main")
            with pytest.raises(ExecutorUnavailable, match="isolation level namespaces"):
                await executor.execute("1", workspace_id="ws-any")
            with pytest.raises(ExecutorUnavailable, match="isolation level namespaces"):
                await anext(executor.stream(Program(code="1", workspace_id="ws-any")))
            assert (await executor.execute("1")).ok
