"""What an acquire and its release cost: unary calls against the session stream, and the core by itself.

Run `python -m benchmarks.bench_limiter`. One limiter in a process of its own, this process as the client, limit 10, no
work under the lease; the variants take turns in short slices, so that whatever else the machine does hits them alike.
Read CPU time and ratios; pairs per second depend on the machine and its load. Prints a table and writes
benchmarks/out/limiter.json: a list of {name, value, unit, bar, ok, against}.
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

from limiter import LimiterClient
from limiter.client.unary import UnaryLimiterClient
from limiter.core import BucketLimits, LimiterCore, SessionKind
from limiter.core.effects import Granted
from limiter.core.events import Acquire, Hello, Release
from rollout.stack import StackPorts

ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "out" / "limiter.json"
ROUNDS = 5
SLICE_S = 1.0
LIMIT = 10
TICKS = os.sysconf("SC_CLK_TCK")

BAR_STREAM_US = 60.0
"""Server CPU per pair over one coalescing stream with 64 tasks, microseconds: what a small share of one core can pay
for thousands of pairs per second."""
BAR_RATIO = 0.2
"""Server CPU of the stream over that of unary calls, in the same run."""


@dataclass(frozen=True)
class Row:
    """One figure."""

    name: str
    value: float
    unit: str
    bar: float | None = None
    ok: bool | None = None
    against: str | None = None


@dataclass(frozen=True)
class Slice:
    """One variant in one round."""

    pairs_per_s: float
    server_us: float
    client_us: float


Pair = Callable[[], Awaitable[None]]


def cpu_of(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def measure(pair: Pair, tasks: int, server: int, seconds: float) -> Slice:
    """Runs `pair` again and again in that many tasks."""
    done = 0
    end = time.monotonic() + seconds

    async def worker() -> None:
        nonlocal done
        while time.monotonic() < end:
            await pair()
            done += 1

    before, mine, started = cpu_of(server), time.process_time(), time.monotonic()
    await asyncio.gather(*(worker() for _ in range(tasks)))
    elapsed = time.monotonic() - started
    after, mine_after = cpu_of(server), time.process_time()
    return Slice(done / elapsed, (after - before) / done * 1e6, (mine_after - mine) / done * 1e6)


def measure_core(waiters: int, pairs: int = 20_000) -> float:
    """CPU microseconds per pair of the core alone, making its events included."""
    core = LimiterCore(1, [BucketLimits("code", LIMIT)], now=0.0)
    core.handle(Hello("s", SessionKind.CLIENT), 0.0)
    held = []
    for number in range(waiters + LIMIT):
        held += [each.leases[0] for each in core.handle(Acquire("s", f"w{number}"), 0.0) if isinstance(each, Granted)]
    started = time.process_time()
    for number in range(pairs):
        now = number * 1e-5
        effects = core.handle(Release("s", held[number]), now)
        effects += core.handle(Acquire("s", f"r{number}"), now)
        held += [each.leases[0] for each in effects if isinstance(each, Granted)]
    return (time.process_time() - started) / pairs * 1e6


async def run() -> list[Row]:
    """Measures everything against one limiter."""
    ports = StackPorts.free()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "limiter",
        "fresh=true",
        f"listen={ports.limiter}",
        f"admin_listen={ports.limiter_admin}",
        f"health_listen={ports.limiter_health}",
        "metrics_listen=",
        f"buckets.code.max_in_flight={LIMIT}",
        cwd=ROOT,
    )
    try:
        async with (
            LimiterClient(ports.limiter, unavailable_after=30) as stream,
            UnaryLimiterClient(ports.limiter) as unary,
        ):

            async def stream_pair() -> None:
                async with stream.lease():
                    pass

            async def unary_pair() -> None:
                async with unary.lease():
                    pass

            variants: dict[tuple[str, int], Pair] = {}
            for tasks in (1, 64):
                variants["unary", tasks] = unary_pair
                variants["stream", tasks] = stream_pair
            slices: dict[tuple[str, int], list[Slice]] = {key: [] for key in variants}
            await stream_pair()  # the stream waits for the server to listen; unary calls do not
            for (_, tasks), pair in variants.items():
                await measure(pair, tasks, process.pid, 0.3)
            cores: dict[int, list[float]] = {0: [], 64: [], 9_000: []}
            for _ in range(ROUNDS):
                for key, pair in variants.items():
                    slices[key].append(await measure(pair, key[1], process.pid, SLICE_S))
                for waiters, found in cores.items():
                    found.append(measure_core(waiters))
    finally:
        process.terminate()
        await process.wait()
    return rows(slices, cores)


def rows(slices: dict[tuple[str, int], list[Slice]], cores: dict[int, list[float]]) -> list[Row]:
    """Medians, and ratios of the same round."""
    found = []
    for waiters, values in cores.items():
        found.append(Row(f"core, {waiters} waiting: CPU per pair", statistics.median(values), "us"))
    for (kind, tasks), taken in slices.items():
        server = statistics.median(each.server_us for each in taken)
        bar = BAR_STREAM_US if (kind, tasks) == ("stream", 64) else None
        name = f"{kind}, {tasks} tasks"
        found.append(Row(f"{name}: pairs", statistics.median(each.pairs_per_s for each in taken), "1/s"))
        found.append(
            Row(f"{name}: server CPU per pair", server, "us", bar, None if bar is None else server <= bar, None)
        )
        found.append(Row(f"{name}: client CPU per pair", statistics.median(each.client_us for each in taken), "us"))
    for tasks in (1, 64):
        pairs = zip(slices["stream", tasks], slices["unary", tasks], strict=True)
        ratio = statistics.median(stream.server_us / unary.server_us for stream, unary in pairs)
        bar = BAR_RATIO if tasks == 64 else None
        ok = None if bar is None else ratio <= bar
        found.append(Row(f"stream/unary, {tasks} tasks: server CPU", ratio, "x", bar, ok, "unary calls, same run"))
    return found


def main() -> int:
    """Prints the table, writes the file; 0 when every bar is met."""
    results = asyncio.run(run())
    width = max(len(row.name) for row in results)
    for row in results:
        bar = "" if row.bar is None else f"  bar {row.bar:g}: {'met' if row.ok else 'MISSED'}"
        print(f"{row.name:<{width}}  {row.value:>10.2f} {row.unit}{bar}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps([asdict(row) for row in results], indent=2) + "\n", encoding="utf-8")
    return 0 if all(row.ok is not False for row in results) else 1


if __name__ == "__main__":
    sys.exit(main())
