"""A server of the benchmark's own, on loopback, and its client."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

from executor_service import ExecutorClient, ExecutorUnavailable
from fairbox.net.ports import free_ports

INTERPRETER = sys.executable
"""Runs the programs on both sides, with all that is installed for it."""
START_WITHIN_S = 60.0


@dataclass(frozen=True)
class Addresses:
    """Addresses that the server listens on."""

    target: str
    health: str
    gateway: str
    pid: int
    """The server's process."""


@contextlib.asynccontextmanager
async def executor(*settings: str) -> AsyncIterator[tuple[ExecutorClient, Addresses]]:
    """A server that is ready, and a client of it."""
    target, health, gateway = (f"127.0.0.1:{port}" for port in free_ports(3))
    words = [f"listen={target}", f"health_listen={health}", f"python={INTERPRETER}"]
    words += ["metrics_listen=", *(word.replace("GATEWAY", gateway) for word in settings)]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "executor_service", *words)
    try:
        async with ExecutorClient(target) as client, asyncio.timeout(START_WITHIN_S) as deadline:
            while True:
                try:
                    await client.execute("print(1)")
                    break
                except ExecutorUnavailable:
                    await asyncio.sleep(0.05)
            deadline.reschedule(None)
            yield client, Addresses(target, health, gateway, process.pid)
    finally:
        process.terminate()
        await process.wait()


async def warm(client: ExecutorClient) -> None:
    """Until every profile is loaded and serves: loading them takes processors from what is measured."""
    async with asyncio.timeout(2 * START_WITHIN_S):
        for name in ("numpy", "pandas", "sympy", "science"):
            await client.execute("print(1)", profile=f"python-{name}")
