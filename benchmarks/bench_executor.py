"""Measures the cost of a program through the executor, and as a plain subprocess on this machine.

`python -m benchmarks.bench_executor [N]` starts its own server, runs N programs (default 200) for each line, prints a
table and writes benchmarks/out/executor.json. Both sides run the same source with the same interpreter, in the same
minute. CPU time covers the whole machine from start to end, client included, because no single process sees everything
a sandbox costs; on a machine that does other work it means nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import executor_overload, executor_sessions
from benchmarks.executor_server import INTERPRETER, executor
from executor_service import ExecutorClient

OUT = Path(__file__).parent / "out" / "executor.json"
PRINT = "print(1)"
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
class Figure:
    """One line of the report. `bar` is what has to be reached; None: nothing. `against`: what it stands beside."""

    name: str
    value: float
    unit: str
    bar: float | None
    ok: bool | None
    against: str


@dataclass(frozen=True)
class Measured:
    """One way to run the program, at one concurrency."""

    p50_ms: float
    p99_ms: float
    per_s: float
    cpu_ms: float

    def __str__(self) -> str:
        return f"{self.p50_ms:.1f} ms, {self.per_s:.0f}/s, {self.cpu_ms:.1f} ms CPU"


def machine_cpu_s() -> float:
    """Seconds that all processors have been busy."""
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    return sum(int(value) for i, value in enumerate(fields) if i not in _IDLE) / _TICKS_PER_S


async def measure(call: Call, *, runs: int, concurrency: int, pause_s: float = 0.0) -> Measured:
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
    cpu, began = machine_cpu_s(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(caller())
    took = time.perf_counter() - began
    await asyncio.sleep(0.2)  # what is taken apart after the last answer is
    cpu = machine_cpu_s() - cpu
    quantiles = statistics.quantiles(times, n=100)
    return Measured(statistics.median(times) * 1e3, quantiles[98] * 1e3, len(times) / took, cpu * 1e3 / len(times))


def plain(code: str) -> Call:
    """The peer: an interpreter without any isolation."""

    async def call() -> None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(INTERPRETER, "-c", code, stdout=pipe, env={})
        output, _ = await process.communicate()
        assert output, code
        assert process.returncode == 0, code

    return call


def isolated(client: ExecutorClient, code: str) -> Call:
    async def call() -> None:
        result = await client.execute(code)
        assert result.ok, result
        assert result.stdout.data, result

    return call


def figure(
    name: str, value: float, unit: str, against: str, *, most: float | None = None, least: float | None = None
) -> Figure:
    """`most` and `least` are bars."""
    bar = most if most is not None else least
    ok = None if bar is None else (value <= bar if most is not None else value >= bar)
    return Figure(name, round(value, 4), unit, bar, ok, against)


def compared(name: str, mine: Measured, peer: Measured) -> list[Figure]:
    against = f"plain subprocess: {peer}"
    return [
        figure(f"{name}: p50", mine.p50_ms, "ms", against),
        figure(f"{name}: p99", mine.p99_ms, "ms", against),
        figure(f"{name}: throughput", mine.per_s, "1/s", against),
        figure(f"{name}: CPU", mine.cpu_ms, "ms", against),
    ]


async def latency(name: str, client: ExecutorClient, code: str, runs: int, *, most: float) -> list[Figure]:
    """Programs that come one at a time, now and then."""
    peer = await measure(plain(code), runs=max(8, runs // 5), concurrency=1, pause_s=PAUSE_S)
    mine = await measure(isolated(client, code), runs=runs, concurrency=1, pause_s=PAUSE_S)
    against = f"plain subprocess: p50 {peer.p50_ms:.1f} ms"
    return [
        figure(f"{name}, now and then: p50", mine.p50_ms, "ms", against),
        figure(f"{name}, now and then: p99", mine.p99_ms, "ms", against),
        figure(f"{name}, now and then: p50 ratio", mine.p50_ms / peer.p50_ms, "x", against, most=most),
    ]


async def prints(client: ExecutorClient, runs: int) -> list[Figure]:
    found = await latency("print(1)", client, PRINT, runs, most=0.1)
    for concurrency in (1, 8, 32):
        peer = await measure(plain(PRINT), runs=runs // 2, concurrency=concurrency)
        mine = await measure(isolated(client, PRINT), runs=runs * 3, concurrency=concurrency)
        name, against = f"print(1), concurrency {concurrency}", f"plain subprocess: {peer}"
        found += compared(name, mine, peer)
        if concurrency == 1:
            found.append(figure(f"{name}: p50 ratio", mine.p50_ms / peer.p50_ms, "x", against, most=0.1))
            found.append(figure(f"{name}: CPU a run", mine.cpu_ms, "ms", against, most=4.5))
        else:
            found.append(figure(f"{name}: throughput ratio", mine.per_s / peer.per_s, "x", against, least=3.5))
    return found


async def scripts(client: ExecutorClient, runs: int) -> list[Figure]:
    found: list[Figure] = []
    for package, code in SCRIPTS.items():
        found += await latency(package, client, code, max(40, runs // 4), most=1 / 40)
        for concurrency in (1, 8):
            peer = await measure(plain(code), runs=max(8, runs // 20), concurrency=concurrency)
            mine = await measure(isolated(client, code), runs=runs, concurrency=concurrency)
            name, against = f"{package}, concurrency {concurrency}", f"plain subprocess: {peer}"
            found += compared(name, mine, peer)
            if concurrency == 1:
                found.append(figure(f"{name}: p50 ratio", mine.p50_ms / peer.p50_ms, "x", against, most=1 / 40))
            bar = THROUGHPUT_BARS[package]
            found.append(figure(f"{name}: throughput ratio", mine.per_s / peer.per_s, "x", against, least=bar))
    return found


async def warm_up(client: ExecutorClient) -> None:
    """Until every profile is loaded and serves."""
    async with asyncio.timeout(120):
        for name in (*SCRIPTS, "science"):
            await client.execute(PRINT, profile=f"python-{name}")


async def main(runs: int) -> list[Figure]:
    found: list[Figure] = []
    async with executor("max_concurrent=32", "spare_boxes=4") as (client, _):
        await warm_up(client)
        found += await prints(client, runs)
        found += await scripts(client, runs)
        for name, value, unit, most in await executor_sessions.measure(client, runs):
            found.append(figure(name, value, unit, "a session", most=most))
    for name, value, unit, most in await executor_overload.measure():
        found.append(figure(name, value, unit, "64 CPU-bound programs at once", most=most))
    return found


if __name__ == "__main__":
    results = asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
    for each in results:
        verdict = "" if each.ok is None else f"bar {each.bar:.4g}: {'met' if each.ok else 'MISSED'}"
        print(f"{each.name:<46} {each.value:>10.3f} {each.unit:<4} {verdict:<20} ({each.against})")
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n", encoding="utf-8")
