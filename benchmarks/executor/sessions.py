"""Cells and branches: the round trip of a cell, and forking a session that holds a large array."""

from __future__ import annotations

import statistics
import time

from benchmarks.executor.server import executor, warm
from benchmarks.rows import Row, figure
from executor_service import ExecutorClient

RUNS, BRANCHES = 200, 40
_HOLD = "import numpy as np; a = np.ones(100 * 1024 * 1024 // 8)"
"""100 MiB, all of it touched."""
_PRIVATE = """
with open("/proc/self/smaps_rollup") as rollup:
    print(sum(int(line.split()[1]) for line in rollup if line.startswith("Private_Dirty")))
"""
"""KiB that belong to this process alone."""


async def session_rows() -> list[Row]:
    """The figures of one quiet minute."""
    async with executor("max_concurrent=32") as (client, _):
        await warm(client)
        found = await _cells(client)
        for profile in ("python-numpy", "python-science"):
            found += await _branches(client, profile)
    return found


async def _cells(client: ExecutorClient) -> list[Row]:
    times = []
    async with client.session() as session:
        await session.run("x = 0")
        for _ in range(RUNS):
            began = time.perf_counter()
            result = await session.run("x += 1; print(x)")
            times.append((time.perf_counter() - began) * 1e3)
        assert int(result.stdout.data) == RUNS
    return [
        figure("cell, round trip: p50", statistics.median(times), "ms", most=1.0),
        figure("cell, round trip: p99", statistics.quantiles(times, n=100)[98], "ms"),
    ]


async def _branches(client: ExecutorClient, profile: str) -> list[Row]:
    times, private = [], []
    async with client.session(profile=profile) as session:
        assert (await session.run(_HOLD)).ok
        for _ in range(BRANCHES):
            began = time.perf_counter()
            (branch,) = await session.branch(1)
            times.append((time.perf_counter() - began) * 1e3)
            async with branch:
                assert (await branch.run("print(int(a[0]))")).stdout.data == b"1\n"
                private.append(int((await branch.run(_PRIVATE)).stdout.data) / 1024)
    return [
        figure(f"branch with 100 MB, {profile}: p50", statistics.median(times), "ms", most=12.0),
        figure(f"branch with 100 MB, {profile}: memory of its own", statistics.median(private), "MiB"),
    ]
