"""Many clients: frames coalesce per stream, so that 64 streams cost the server more than one.

Eight processes (`clients`) of eight clients stand for 64 processes, which the server can't tell apart from them, and
which two cores could not run beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from benchmarks.limiter.server import ROOT, START_WITHIN_S, Server, running
from benchmarks.rows import Row, cpu_of, figure, median

_PROCESSES = 8
_CLIENTS = 64
_ROUNDS = 5
_ROUND_S = 2.0
_MOST_US = 300.0


async def rows() -> list[Row]:
    """Server CPU per pair with one task in each client."""
    async with running() as server, contextlib.AsyncExitStack() as stack:
        for _ in range(_PROCESSES):
            await _start(server, stack)
        await asyncio.sleep(1.0)
        pairs, cpu = [], []
        for _ in range(_ROUNDS):
            before, used = (await server.bucket()).granted_total, cpu_of(server.pid)
            await asyncio.sleep(_ROUND_S)
            done = (await server.bucket()).granted_total - before
            pairs.append(done / _ROUND_S)
            cpu.append((cpu_of(server.pid) - used) / done * 1e6)
    name = f"stream, {_CLIENTS} clients of one task"
    return [
        figure(f"{name}: pairs", median(pairs), "1/s"),
        figure(f"{name}: server CPU per pair", median(cpu), "us", most=_MOST_US),
    ]


async def _start(server: Server, stack: contextlib.AsyncExitStack) -> None:
    pipe = asyncio.subprocess.PIPE
    words = ["benchmarks.limiter.clients", server.address, str(_CLIENTS // _PROCESSES)]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *words, cwd=ROOT, stdin=pipe, stdout=pipe)
    stack.push_async_callback(_end, process)
    assert process.stdout is not None
    async with asyncio.timeout(START_WITHIN_S):
        assert await process.stdout.readline()


async def _end(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.communicate()
