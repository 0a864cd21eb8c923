"""Cells and branches: the round trip of a cell, and forking a session that holds a large array."""

from __future__ import annotations

import statistics
import time

from executor_service import ExecutorClient

Line = tuple[str, float, str, float | None]
"""Name, value, unit, and the most that it may be."""
_HOLD = "import numpy as np; a = np.ones(100 * 1024 * 1024 // 8)"
"""100 MiB, all of it touched."""
_PRIVATE = """
with open("/proc/self/smaps_rollup") as rollup:
    print(sum(int(line.split()[1]) for line in rollup if line.startswith("Private_Dirty")))
"""
"""KiB that belong to this process alone."""


async def measure(client: ExecutorClient, runs: int) -> list[Line]:
    """The figures of one quiet minute."""
    found = await _cells(client, runs)
    for profile in ("python-numpy", "python-science"):
        found += await _branches(client, max(10, runs // 5), profile)
    return found


async def _cells(client: ExecutorClient, runs: int) -> list[Line]:
    times = []
    async with client.session() as session:
        await session.run("x = 0")
        for _ in range(runs):
            began = time.perf_counter()
            result = await session.run("x += 1; print(x)")
            times.append((time.perf_counter() - began) * 1e3)
        assert int(result.stdout.data) == runs
    return [
        ("cell, round trip: p50", statistics.median(times), "ms", 1.0),
        ("cell, round trip: p99", statistics.quantiles(times, n=100)[98], "ms", None),
    ]


async def _branches(client: ExecutorClient, runs: int, profile: str) -> list[Line]:
    times, private = [], []
    async with client.session(profile=profile) as session:
        assert (await session.run(_HOLD)).ok
        for _ in range(runs):
            began = time.perf_counter()
            (branch,) = await session.branch(1)
            times.append((time.perf_counter() - began) * 1e3)
            async with branch:
                assert (await branch.run("print(int(a[0]))")).stdout.data == b"1\n"
                private.append(int((await branch.run(_PRIVATE)).stdout.data) / 1024)
    return [
        (f"branch with 100 MB, {profile}: p50", statistics.median(times), "ms", 12.0),
        (f"branch with 100 MB, {profile}: memory of its own", statistics.median(private), "MiB", None),
    ]
