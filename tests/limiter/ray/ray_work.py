"""Functions for Ray's worker processes: pools that share a limiter, and record when their functions run."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

from limiter.pool import ExecutionPool
from limiter.ray import RayLimiter


def mark(log: str) -> None:
    """A function of some length: the first one lasts until another runs beside it. Its marks tell how many run at once,
    at most."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"+")
    deadline = time.monotonic() + 30
    while b"++" not in Path(log).read_bytes() and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(0.02)
    os.write(descriptor, b"-")
    os.close(descriptor)


def most_at_once(log: str) -> int:
    """Reads the marks."""
    running = most = 0
    for each in Path(log).read_text():
        running += 1 if each == "+" else -1
        most = max(most, running)
    assert running == 0
    return most


def share(name: str, settings: Sequence[str], log: str, runs: int) -> int:
    """Makes the limiter or finds it, runs functions under it, and returns the epoch of a lease."""

    async def work() -> int:
        async with RayLimiter(name=name, settings=settings) as limiter, ExecutionPool(limiter, num_workers=3) as pool:
            await asyncio.gather(*(pool.run(mark, log) for _ in range(runs)))
            async with limiter.client() as client, client.lease() as lease:
                return lease.epoch

    return asyncio.run(work())
