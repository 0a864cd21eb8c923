"""4,000 trajectories at once: two scripted engine replicas behind the balancer, a real limiter, a real executor.

Each trajectory runs one program under a lease, so 4,000 of them wait in the limiter's queue. Nothing may fail, and
nothing may be left: no turn at an engine, no lease, nobody in a queue, no program, no descriptor of this process.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from benchmarks.rollout.loop import tasks
from benchmarks.rollout.replay import CALL
from benchmarks.rows import Row, figure
from rollout.engines import SamplingParams, find_model
from rollout.engines.replicas.replicated import ReplicatedEngine
from rollout.loop import AgentLoop, Limits, RolloutRunner, Schedule, TrajectoryResult
from rollout.rewards import Reward
from rollout.stack import LocalStack
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
from tests.rollout.services import executor_status, limiter_status

TRAJECTORIES = 4_000
TURNS = (CALL.replace('"code", "arg', '"code_interpreter", "arg'), "#### 4950")


def _descriptors() -> int:
    return sum(1 for _ in Path(f"/proc/{os.getpid()}/fd").iterdir())


async def _left(stack: LocalStack) -> int:
    """Leases, waiters and programs that the services still count."""
    bucket, programs = (await limiter_status(stack)).buckets[0], await executor_status(stack)
    return bucket.held + bucket.queued + programs.running + programs.queued


async def rows() -> list[Row]:
    tokenizer = HubTokenizer(find_model("smollm2"))
    chat = ChatTemplate(tokenizer)
    replicas = {name: ScriptedEngine(tokenizer, TURNS, vocab_size=49_152, delay_s=0.5) for name in ("a", "b")}
    results: list[TrajectoryResult] = []
    config = CodeInterpreterConfig(num_workers=TRAJECTORIES, queue_timeout=600.0)
    async with LocalStack() as stack:
        before = _descriptors()
        async with (
            ReplicatedEngine(replicas) as engine,
            CodeInterpreter(config, executor=stack.ports.executor, limiter=stack.ports.limiter) as tool,
        ):
            loop = AgentLoop(engine, chat, Toolbox([tool]), Limits(max_tool_time_s=None), SamplingParams())
            runner = RolloutRunner(
                loop,
                lambda task, result: Reward(float(result.tool_calls[0].text == "4950")),
                lambda result, task: results.append(result),
                schedule=Schedule(concurrency=TRAJECTORIES),
                retries=0,
            )
            began = time.monotonic()
            running = asyncio.create_task(runner.run(tasks(TRAJECTORIES)))
            most = 0
            while not running.done():
                most = max(most, runner.statistics().running)
                await asyncio.sleep(0.05)
            await running
            took = time.monotonic() - began
            at_engines = sum(replica.statistics().running for replica in replicas.values())
        left = at_engines + await _left(stack) + max(0, _descriptors() - before)
    wrong = sum(result.reward is None or result.reward.value != 1.0 for result in results)
    share = min(replica.statistics().finished for replica in replicas.values()) / (2 * TRAJECTORIES)
    where = "two scripted replicas, real limiter and executor"
    return [
        figure("many: trajectories at once", most, "", least=TRAJECTORIES, against=where),
        figure("many: masked or wrong", wrong + TRAJECTORIES - len(results), "", most=0, against=where),
        figure("many: turns, leases, waiters, programs, descriptors left", left, "", most=0, against=where),
        figure("many: the lesser replica's share of turns", share * 100, "%", against=where),
        figure("many: trajectories a second", len(results) / took, "1/s", against=where),
    ]
