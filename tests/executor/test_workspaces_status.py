"""Status of workspaces in GetStatus, while things happen to them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from executor_service import ExecutorClient, Overloaded
from executor_service.v1 import executor_pb2 as pb
from tests.executor.repositories import commit, new
from tests.executor.servers import Server, running, wait_for

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
MOST = 8 << 20


def counts(server: Server, *names: str) -> tuple[int, ...]:
    found = server.status().workspaces
    return tuple(getattr(found, name) for name in names)


async def test_status_tells_of_workspaces(tmp_path: Path) -> None:
    folder = new(tmp_path / "roots" / "r")
    bases = [commit(folder, f"{i}", {"big": bytes([i]) * (5 << 19)}) for i in range(4)]  # 2.5 MiB each
    settings = (f"workspace_roots=[{tmp_path}/roots]", f"workspace_bytes={MOST}", "max_concurrent=2")
    with running(*settings) as server:
        assert server.status().workspaces == pb.WorkspaceStatus(max_bytes=MOST)
        async with ExecutorClient(server.target) as executor:

            async def prepare(base: str, ttl_s: float = 0.0) -> str:
                found = await executor.prepare_workspace(local_path=str(folder), commit=base, idle_ttl_s=ttl_s)
                return found.workspace_id

            names = [await prepare(base) for base in bases[:3]]
            (size,) = counts(server, "bytes")
            assert 3 * (5 << 19) <= size <= MOST
            assert counts(server, "entries", "in_use", "prepared_total", "hits_total") == (3, 0, 3, 0)
            await asyncio.gather(*(prepare(bases[0]) for _ in range(4)), prepare(bases[0][:12]))
            assert counts(server, "entries", "prepared_total", "hits_total") == (3, 3, 5)
            async with executor.session(workspace_id=names[0]) as session, executor.session(workspace_id=names[0]):
                await session.run("1")
                assert counts(server, "entries", "in_use", "evicted_total") == (3, 1, 0)
                last = await prepare(bases[3])
                assert counts(server, "entries", "in_use", "evicted_total", "expired_total") == (3, 1, 1, 0)
                assert counts(server, "bytes")[0] <= MOST
                async with executor.session(workspace_id=names[2]), executor.session(workspace_id=last):
                    with pytest.raises(Overloaded, match="workspace_bytes"):
                        await prepare(bases[1])
                    assert counts(server, "in_use", "preparing", "prepared_total") == (3, 0, 4)
            await asyncio.to_thread(wait_for, lambda: counts(server, "in_use") == (0,))
            await prepare(bases[1], 0.1)
            assert counts(server, "prepared_total", "evicted_total") == (5, 2)
            assert sum(counts(server, "entries", "expired_total")) == 3
            await asyncio.to_thread(wait_for, lambda: counts(server, "entries", "expired_total") == (2, 1))
