"""The pictures of docs/operations.md, from a real run: `python -m benchmarks.pictures` (needs prometheus in the PATH).

Limiter, executor and Prometheus are started; a real model is rolled out, and beside it programs and sessions keep the
executor busy for two minutes. A trace with a tool call becomes docs/trace.png, the dashboard docs/dashboard.png.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.picture_dashboard import draw_dashboard
from benchmarks.picture_trace import draw_trace
from executor_service import ExecutorClient, Limits
from fairbox.collector import Collector, SeenSpan, collecting
from fairbox.errors import FairboxError
from fairbox.ports import free_port
from limiter import LimiterClient
from rollout.stack import LocalStack

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "deploy" / "monitoring" / "dashboard.json"
PROGRAMS = (
    ("print(sum(range(1000)))", "python"),
    ("import numpy as np; print(np.linalg.svd(np.ones((120, 120)))[1][0])", "python"),
    ("import time; time.sleep(0.4)", "python"),
    ("raise ValueError('no')", "python"),
    ("while True: pass", "python"),
    ("x = bytearray(600 << 20)", "python"),
    ("echo hello", "bash"),
)
WEIGHTS = (40, 10, 20, 10, 2, 2, 10)


async def keep_busy(limiter: LimiterClient, executor: ExecutorClient, until: float) -> None:
    """One caller: programs under leases, one after another, in waves."""
    while time.monotonic() < until:
        code, language = random.choices(PROGRAMS, WEIGHTS)[0]
        with contextlib.suppress(FairboxError):
            async with limiter.lease() as lease:
                limits = Limits(wall_time_s=1.0, memory_bytes=256 << 20)
                await executor.execute(code, language=language, limits=limits, lease=lease)
        await asyncio.sleep(random.uniform(0, 0.3) if int(time.monotonic() / 20) % 2 else 2.0)


async def keep_sessions(executor: ExecutorClient, until: float) -> None:
    """Sessions that are branched, one family after another."""
    while time.monotonic() < until:
        async with executor.session() as session:
            await session.run("import numpy as np; state = np.zeros(1 << 20)")
            for branch in await session.branch(3):
                async with branch:
                    await branch.run("state[0] += 1; state.sum()")
                    await asyncio.sleep(1.5)


@contextlib.asynccontextmanager
async def prometheus(targets: dict[str, str], folder: Path) -> AsyncIterator[str]:
    """A Prometheus server that scrapes every 2 s; its URL."""
    jobs = "\n".join(
        f'  - {{job_name: {job}, static_configs: [{{targets: ["{address}"]}}]}}' for job, address in targets.items()
    )
    settings = "global: {scrape_interval: 2s, evaluation_interval: 2s}\nrule_files: [%s]\nscrape_configs:\n%s\n"
    (folder / "prometheus.yaml").write_text(settings % (ROOT / "deploy" / "monitoring" / "alerts.yaml", jobs))
    address = f"127.0.0.1:{free_port()}"
    words = [f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    process = await asyncio.create_subprocess_exec(
        "prometheus", *words, f"--web.listen-address={address}", stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.wait()


def chosen(collector: Collector) -> list[SeenSpan]:
    """The spans of the trace that shows most: with a tool call, and the most spans among those of usual length."""
    traces = collections.defaultdict(list)
    for span in collector.spans:
        traces[span.trace_id].append(span)
    whole = [
        spans
        for spans in traces.values()
        if {"rollout.trajectory", "executor.execution", "limiter.queue"} <= {span.name for span in spans}
    ]
    return max(whole, key=lambda spans: min(len(spans), 40))


async def main(seconds: float) -> None:
    """Writes both pictures."""
    figures = {name: f"127.0.0.1:{free_port()}" for name in ("limiter", "executor", "rollout")}
    with tempfile.TemporaryDirectory() as temporary, collecting() as collector:
        words = [f"otlp_endpoint={collector.url}"]
        stack = LocalStack(
            limiter_args=["buckets.code.max_in_flight=4", f"metrics_listen={figures['limiter']}", *words],
            executor_args=["max_concurrent=6", f"metrics_listen={figures['executor']}", *words],
        )
        async with stack, prometheus(figures, Path(temporary)) as server:
            ports, began = stack.ports, time.time()
            rolling = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "rollout.cli", "rollout", f"out={temporary}/out"),
                *("n=8", "samples_per_prompt=8", "concurrency=6", f"time_limit_s={seconds:.0f}"),
                *(f"limiter={ports.limiter}", f"executor={ports.executor}", f"metrics_listen={figures['rollout']}"),
                *words,
            )
            until = time.monotonic() + seconds
            async with LimiterClient(ports.limiter) as limiter, ExecutorClient(ports.executor) as executor:
                async with asyncio.TaskGroup() as group:
                    for _ in range(10):
                        group.create_task(keep_busy(limiter, executor, until))
                    group.create_task(keep_sessions(executor, until))
                ended = time.time()
            empty = draw_dashboard(
                DASHBOARD, server, began=began, ended=ended, rate="20s", path=ROOT / "docs" / "dashboard.png"
            )
            print("panels without data:", ", ".join(empty) or "none")
            await rolling.wait()
        trace = chosen(collector)
        draw_trace(trace, ROOT / "docs" / "trace.png")
        print(f"{len(collector.spans)} spans; the trace drawn has {len(trace)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    if shutil.which("prometheus") is None:
        sys.exit("pictures: prometheus is not in the PATH (Debian: apt-get install prometheus)")
    asyncio.run(main(parser.parse_args().seconds))
