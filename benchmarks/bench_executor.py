"""What a program costs through the executor, beside what it costs as a plain subprocess of this machine.

`python -m benchmarks.bench_executor [N]` starts a server of its own, runs N programs (default 80) for each line, prints
a table and writes benchmarks/out/executor.json. Both sides run the same source with the same interpreter. CPU time is
that of the whole machine between start and end, because no process sees all of what a sandbox costs; on a machine that
does other work it means nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from executor_service import ExecutorClient, ExecutorUnavailable

OUT = Path(__file__).parent / "out" / "executor.json"
CODE = "print(1)"
CONCURRENCIES = (1, 8)
START_WITHIN_S = 60.0
INTERPRETER = str(Path(sys.executable).resolve())
"""What the executor uses unless it is told otherwise."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
"""Positions of idle and iowait in the first line of /proc/stat."""

Call = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Figure:
    """One line of the report. `bar` is what has to be reached; None: nothing yet. `against`: what it stands beside."""

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


def machine_cpu_s() -> float:
    """Seconds that all processors have been busy."""
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    return sum(int(value) for i, value in enumerate(fields) if i not in _IDLE) / _TICKS_PER_S


async def measure(call: Call, *, runs: int, concurrency: int) -> Measured:
    """Closed loop: `concurrency` callers, each of which starts the next program when its last one has ended."""
    times: list[float] = []
    left = runs

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            await call()
            times.append(time.perf_counter() - began)

    for _ in range(concurrency):
        await call()
    cpu, began = machine_cpu_s(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(caller())
    took, cpu = time.perf_counter() - began, machine_cpu_s() - cpu
    quantiles = statistics.quantiles(times, n=100)
    return Measured(statistics.median(times) * 1e3, quantiles[98] * 1e3, len(times) / took, cpu * 1e3 / len(times))


async def plain() -> None:
    """The floor: an interpreter without any isolation."""
    process = await asyncio.create_subprocess_exec(INTERPRETER, "-c", CODE, stdout=asyncio.subprocess.PIPE, env={})
    output, _ = await process.communicate()
    assert (output, process.returncode) == (b"1\n", 0)


@contextlib.asynccontextmanager
async def executor() -> AsyncIterator[ExecutorClient]:
    """A server of our own and its client."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(2)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        listen, health = (f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "executor_service", f"listen={listen}", f"health_listen={health}", "max_concurrent=8"
    )
    try:
        async with ExecutorClient(listen) as client, asyncio.timeout(START_WITHIN_S) as deadline:
            while True:
                try:
                    await client.execute(CODE)
                    break
                except ExecutorUnavailable:
                    await asyncio.sleep(0.05)
            deadline.reschedule(None)
            yield client
    finally:
        process.terminate()
        await process.wait()


def figures(name: str, mine: Measured, floor: Measured) -> list[Figure]:
    against = f"plain subprocess: {floor.p50_ms:.1f} ms, {floor.per_s:.0f}/s, {floor.cpu_ms:.1f} ms CPU"
    values = (
        ("p50", mine.p50_ms, "ms"),
        ("p99", mine.p99_ms, "ms"),
        ("throughput", mine.per_s, "1/s"),
        ("cpu", mine.cpu_ms, "ms"),
        ("p50 ratio", mine.p50_ms / floor.p50_ms, "x"),
        ("throughput ratio", mine.per_s / floor.per_s, "x"),
        ("cpu ratio", mine.cpu_ms / floor.cpu_ms, "x"),
    )
    return [Figure(f"{name}: {what}", round(value, 3), unit, None, None, against) for what, value, unit in values]


async def main(runs: int) -> list[Figure]:
    found: list[Figure] = []
    async with executor() as client:

        async def isolated() -> None:
            assert (await client.execute(CODE)).stdout.data == b"1\n"

        for concurrency in CONCURRENCIES:
            floor = await measure(plain, runs=runs, concurrency=concurrency)
            mine = await measure(isolated, runs=runs, concurrency=concurrency)
            found += figures(f"print(1), concurrency {concurrency}", mine, floor)
    return found


if __name__ == "__main__":
    results = asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 80))
    for figure in results:
        print(f"{figure.name:<44} {figure.value:>10.2f} {figure.unit:<4} ({figure.against})")
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps([asdict(figure) for figure in results], indent=1) + "\n", encoding="utf-8")
