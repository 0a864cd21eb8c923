"""Verdicts on six hundred labelled programs: how many are as labelled, and which are not."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time

from benchmarks.executor.server import executor
from benchmarks.rows import Row, figure, skipped
from executor_service import ExecutorClient, Limits
from tests.executor.corpus import Labelled, corpus

LIMITS = Limits(wall_time_s=2, cpu_time_s=2, memory_bytes=512 << 20, processes=32)
AT_ONCE = 8
LEAST = 0.995
_TOOLS = {"cpp": "g++", "nodejs": "node", "go": "go"}


async def corpus_rows() -> list[Row]:
    """Bars: 99.5 % as labelled; no hostile program passes, and no right one fails."""
    missing = [tool for tool in _TOOLS.values() if shutil.which(tool) is None]
    if missing:
        return [skipped("corpus", f"needs {', '.join(missing)}")]
    programs = list(corpus())
    began = time.perf_counter()
    async with executor("languages=python,cpp,nodejs,go", f"max_concurrent={AT_ONCE}") as (client, _):
        free = asyncio.Semaphore(AT_ONCE)
        agreed = await asyncio.gather(*(_agrees(client, free, program) for program in programs))
    others = [program for program, right in zip(programs, agreed, strict=True) if not right]
    for program in others:
        print(
            f"  {program.label}, not judged so: {program.kind} in {program.language}: {program.reason}", file=sys.stderr
        )
    share = 1 - len(others) / len(programs)
    return [
        figure(f"verdicts as labelled, of {len(programs)}", share, "", least=LEAST),
        figure("hostile programs that pass", sum(each.label == "hostile" for each in others), "", most=0),
        figure("right programs that fail", sum(each.label == "right" for each in others), "", most=0),
        figure("all of them", time.perf_counter() - began, "s"),
    ]


async def _agrees(client: ExecutorClient, free: asyncio.Semaphore, program: Labelled) -> bool:
    async with free:
        how = {"stop_on_failure": program.label == "slow", **program.how}
        result = await client.verify(program.code, program.cases, language=program.language, limits=LIMITS, **how)
        return program.agrees(result)
