"""A program through the executor, and as a plain subprocess on this machine.

Both sides run the same source with the same interpreter, in the same minute. CPU time covers the whole machine from
start to end, client included, because no single process sees everything a sandbox costs; on a machine that does other
work it means nothing.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.executor.server import INTERPRETER, executor, warm
from benchmarks.rows import Row, figure
from executor_service import ExecutorClient

PRINT = "print(1)"
RUNS = 200
"""Programs that are run for each line."""
PAUSE_S = 0.02
"""Between programs that come now and then: latency is what one waits when the machine has time. In a closed loop of
one caller it waits for the preparation of later workers as well, which is what throughput measures. Both are given."""
SCRIPTS = {
    "numpy": "import numpy as np; print(int(np.arange(10).sum()))",
    "pandas": "import pandas as pd; print(int(pd.DataFrame({'a': [1, 2, 3]}).a.sum()))",
    "sympy": "import sympy as sp; x = sp.Symbol('x'); print(sp.integrate(sp.sin(x), x))",
}
"""Packages whose import costs far more than what is done with them."""
THROUGHPUT_BARS = {"numpy": 15.0, "pandas": 30.0, "sympy": 45.0}
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
"""Positions of idle and iowait in the first line of /proc/stat."""

Call = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Measured:
    """One way to run the program, at one concurrency."""

    p50_ms: float
    p99_ms: float
    per_s: float
    cpu_ms: float

    def __str__(self) -> str:
        return f"{self.p50_ms:.1f} ms, {self.per_s:.0f}/s, {self.cpu_ms:.1f} ms CPU"


def _machine_cpu_s() -> float:
    """Seconds that all processors have been busy."""
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    return sum(int(value) for i, value in enumerate(fields) if i not in _IDLE) / _TICKS_PER_S


async def _measure(call: Call, *, runs: int, concurrency: int, pause_s: float = 0.0) -> Measured:
    """Closed loop: `concurrency` callers, each of which starts the next program `pause_s` after its last one ended."""
    times: list[float] = []
    left = runs

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            await call()
            times.append(time.perf_counter() - began)
            await asyncio.sleep(pause_s)

    await asyncio.gather(*(call() for _ in range(concurrency)))
    await asyncio.sleep(0.2)  # what the first ones set in motion is not part of what is measured
    cpu, began = _machine_cpu_s(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(caller())
    took = time.perf_counter() - began
    await asyncio.sleep(0.2)  # what is taken apart after the last answer is
    cpu = _machine_cpu_s() - cpu
    quantiles = statistics.quantiles(times, n=100)
    return Measured(statistics.median(times) * 1e3, quantiles[98] * 1e3, len(times) / took, cpu * 1e3 / len(times))


def _plain(code: str) -> Call:
    """The peer: an interpreter without any isolation."""

    async def call() -> None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(INTERPRETER, "-c", code, stdout=pipe, env={})
        output, _ = await process.communicate()
        assert output, code
        assert process.returncode == 0, code

    return call


def _isolated(client: ExecutorClient, code: str) -> Call:
    async def call() -> None:
        result = await client.execute(code)
        assert result.ok, result
        assert result.stdout.data, result

    return call


def _compared(name: str, mine: Measured, peer: Measured) -> list[Row]:
    against = f"plain subprocess: {peer}"
    return [
        figure(f"{name}: p50", mine.p50_ms, "ms", against=against),
        figure(f"{name}: p99", mine.p99_ms, "ms", against=against),
        figure(f"{name}: throughput", mine.per_s, "1/s", against=against),
        figure(f"{name}: CPU", mine.cpu_ms, "ms", against=against),
    ]


async def _latency(name: str, client: ExecutorClient, code: str, runs: int, *, most: float) -> list[Row]:
    """Programs that come one at a time, now and then."""
    peer = await _measure(_plain(code), runs=max(8, runs // 5), concurrency=1, pause_s=PAUSE_S)
    mine = await _measure(_isolated(client, code), runs=runs, concurrency=1, pause_s=PAUSE_S)
    against = f"plain subprocess: p50 {peer.p50_ms:.1f} ms"
    return [
        figure(f"{name}, now and then: p50", mine.p50_ms, "ms", against=against),
        figure(f"{name}, now and then: p99", mine.p99_ms, "ms", against=against),
        figure(f"{name}, now and then: p50 ratio", mine.p50_ms / peer.p50_ms, "x", against=against, most=most),
    ]


async def _prints(client: ExecutorClient) -> list[Row]:
    found = await _latency("print(1)", client, PRINT, RUNS, most=0.1)
    for concurrency in (1, 8, 32):
        peer = await _measure(_plain(PRINT), runs=RUNS // 2, concurrency=concurrency)
        mine = await _measure(_isolated(client, PRINT), runs=RUNS * 3, concurrency=concurrency)
        name, against = f"print(1), concurrency {concurrency}", f"plain subprocess: {peer}"
        found += _compared(name, mine, peer)
        if concurrency == 1:
            found.append(figure(f"{name}: p50 ratio", mine.p50_ms / peer.p50_ms, "x", against=against, most=0.1))
            found.append(figure(f"{name}: CPU a run", mine.cpu_ms, "ms", against=against, most=4.5))
        else:
            found.append(figure(f"{name}: throughput ratio", mine.per_s / peer.per_s, "x", against=against, least=3.5))
    return found


async def _scripts(client: ExecutorClient) -> list[Row]:
    found: list[Row] = []
    for package, code in SCRIPTS.items():
        found += await _latency(package, client, code, max(40, RUNS // 4), most=1 / 40)
        for concurrency in (1, 8):
            peer = await _measure(_plain(code), runs=max(8, RUNS // 20), concurrency=concurrency)
            mine = await _measure(_isolated(client, code), runs=RUNS, concurrency=concurrency)
            name, against = f"{package}, concurrency {concurrency}", f"plain subprocess: {peer}"
            found += _compared(name, mine, peer)
            if concurrency == 1:
                found.append(figure(f"{name}: p50 ratio", mine.p50_ms / peer.p50_ms, "x", against=against, most=1 / 40))
            bar = THROUGHPUT_BARS[package]
            found.append(figure(f"{name}: throughput ratio", mine.per_s / peer.per_s, "x", against=against, least=bar))
    return found


async def program_rows() -> list[Row]:
    """`print(1)`, and scripts whose packages are loaded."""
    async with executor("max_concurrent=32", "spare_boxes=4") as (client, _):
        await warm(client)
        return [*await _prints(client), *await _scripts(client)]
