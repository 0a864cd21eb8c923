"""Cost of keeping turns on disk, and how long a rollout service takes to go on with 1,000 trajectories.

The engine and the tool follow a script; a turn has some 200 tokens, a call's answer 500 characters.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.rollout.loop import UNLIMITED, tasks
from benchmarks.rows import Row, figure, median
from fairbox.net.service_process import settle_memory
from rollout.dump import record_of
from rollout.engines import SamplingParams, find_model
from rollout.journal import Durability, open_journal
from rollout.loop import AgentLoop, RolloutRunner, Schedule, TrajectoryResult
from rollout.rewards import Reward
from rollout.service import RolloutTask
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox
from tests.rollout.scripted import tool_call
from tests.rollout.service.serving import PROBLEMS, Echo, Tier

TRAJECTORIES, TURNS, ROUNDS = 100, 5, 9
IN_FLIGHT = 1_000


async def journal_rows() -> list[Row]:
    """A journal beside none, in turn."""
    await _played(Durability.NONE)
    found = [(await _played(Durability.NONE), await _played(Durability.PROCESS)) for _ in range(ROUNDS)]
    cpu_ms = median([kept[0] - plain[0] for plain, kept in found])
    _, written, dumped = found[-1][1]
    return [
        figure("journal: CPU a turn", cpu_ms, "ms", most=0.3, against="a run without"),
        figure("journal: bytes a turn", written, "B", most=1.2 * dumped, against=f"the dump has {dumped:.0f}"),
    ]


async def _played(durability: Durability) -> tuple[float, float, float]:
    """Milliseconds of CPU, bytes of the journal and bytes of the dump, all of a turn."""
    tokenizer = HubTokenizer(find_model("smollm2"))
    chat, results, count = ChatTemplate(tokenizer), list[TrajectoryResult](), TRAJECTORIES * TURNS
    said = ["I think about it. " * 40 + tool_call("echo", text="x" * 200)] * (TURNS - 1) + ["#### 6"]
    engine, tool = ScriptedEngine(tokenizer, said, vocab_size=49152, delay_s=0.05), Echo(lambda _: "y" * 500)
    with tempfile.TemporaryDirectory() as folder:
        async with open_journal(Path(folder), durability, {}) as journal:
            loop = AgentLoop(engine, chat, Toolbox([tool]), UNLIMITED, SamplingParams(), journal=journal)
            score, keep, schedule = lambda _, __: Reward(1.0), lambda result, _: results.append(result), Schedule(16)
            runner = RolloutRunner(loop, score, keep, schedule=schedule, retries=0, seed=1, journal=journal)
            began = time.process_time()
            await runner.run(tasks(TRAJECTORIES))
            cpu_s = time.process_time() - began
        written = sum(entry.stat().st_size for entry in os.scandir(folder))
    rows = [record_of(each, tasks(1)[0], step=1, model="m", decode=chat.decode_plain) for each in results]
    return 1e3 * cpu_s / count, written / count, sum(len(json.dumps(row)) for row in rows) / count


async def resume_rows() -> list[Row]:
    """From the start of the process, with its engine there, until each trajectory is in the turn that it was in."""
    tokenizer = HubTokenizer(find_model("smollm2"))
    with tempfile.TemporaryDirectory() as folder:
        tier = Tier(tokenizer, ChatTemplate(tokenizer), Path(folder), delay_s=0.2, ending=0.0)
        opened = partial(tier.process, concurrency=IN_FLIGHT, max_trajectories=IN_FLIGHT)
        async with opened() as served, served.client() as client:
            await client.submit([RolloutTask(str(n), problem=n % len(PROBLEMS)) for n in range(IN_FLIGHT)])
            while tier.sampled.total() < 2.5 * IN_FLIGHT:
                await asyncio.sleep(0.05)
        settle_memory()  # as the service does
        tier.delay_s, began = 3600.0, time.monotonic()
        async with opened() as served:
            totals = served.trajectories.totals
            while len(served.engine.requests) + totals.ended < totals.resumed:
                await asyncio.sleep(0.01)
            took_s, against = time.monotonic() - began, f"{totals.resumed} in flight"
    return [figure("service: trajectories go on after", took_s, "s", most=2.0, against=against)]


PARTS = {"journal": journal_rows, "resume": resume_rows}
