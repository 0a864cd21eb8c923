"""Cost of tracing: a span with tracing off, a span with tracing on, and a whole run at the executor either way.

All are CPU times: of this thread, and of the whole server including the thread that exports. The collector is a real
one.
"""

from __future__ import annotations

import asyncio
import os
import time

from opentelemetry.trace import use_span

from benchmarks.executor_server import executor
from benchmarks.rows import Row, cpu_of, figure, median
from executor_service import ExecutorClient
from fairbox.telemetry import tracing
from fairbox.telemetry.program import TelemetrySettings, open_traces
from tests.otlp_collector import collecting

SPANS = 200_000
RUNS = 300
ROUNDS = 5


async def rows() -> list[Row]:
    """The figures."""
    with collecting() as collector:
        off_ns = _spans_ns()
        async with open_traces(TelemetrySettings(otlp_endpoint=collector.url), service="bench", instance="0"):
            with use_span(tracing.trajectory_span(os.urandom(16).hex()), end_on_exit=True):
                on_us = _spans_ns(SPANS // 20) / 1000
        quick = [f"profiles.python-{name}.ahead=false" for name in ("numpy", "sympy", "pandas", "science")]
        endpoint = f"otlp_endpoint={collector.url}"
        async with executor(*quick) as (plain, at_plain), executor(*quick, endpoint) as (traced, at_traced):
            pids = [at_plain.pid, at_traced.pid]
            without, with_ = [], []
            for _ in range(ROUNDS):
                without.append(await _run_us(plain, pids[0]))
                with_.append(await _run_us(traced, pids[1]))
    return [
        figure("span, tracing off", off_ns, "ns", most=1000, against="a run of 3 to 5 ms has about ten"),
        figure("span, tracing on", on_us, "us"),
        figure("server's CPU time for a run, tracing off", median(without), "us"),
        figure("server's CPU time for a run, tracing on", median(with_), "us"),
        figure("ratio", median(with_) / median(without), "", most=1.5, against="every run is traced"),
    ]


def _spans_ns(count: int = SPANS) -> float:
    best = float("inf")
    for _ in range(3):
        began = time.thread_time_ns()
        for _ in range(count):
            with tracing.span("limiter.acquire", bucket="code") as span:
                span.set_attribute("fairbox.lease", "code/1.2")
        best = min(best, (time.thread_time_ns() - began) / count)
    return best


async def _run_us(client: ExecutorClient, pid: int) -> float:
    before = cpu_of(pid)
    for _ in range(RUNS // 4):
        await asyncio.gather(*(client.execute("print(1)") for _ in range(4)))
    return (cpu_of(pid) - before) / RUNS * 1e6
