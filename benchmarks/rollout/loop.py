"""Cost of the loop itself: 1,000 trajectories at once in one process, with an engine and a tool that only wait.

The CPU time of the same waits without a loop is subtracted. Memory is the growth of the process until all trajectories
wait in their last turn, less their ids and logprobs.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time

from benchmarks.rollout.replay import Played, ReplayEngine, ReplayTool, Turn
from benchmarks.rows import Row, figure, median, resident_kib
from rollout.engines import SamplingParams, find_model
from rollout.loop import AgentLoop, Limits, RolloutRunner, Schedule, Task, TrajectoryResult
from rollout.rewards import Reward
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox

TRAJECTORIES = 1_000
TURNS = 6
ROUNDS = 3
UNLIMITED = Limits(None, None, None, None, None, None)


def tasks(count: int) -> list[Task]:
    """One problem each."""
    question = {"role": "user", "content": "What is the sum of the numbers from 0 to 99? Use code. " * 4}
    return [Task(str(number), (question,), "4950", "bench", str(number)) for number in range(count)]


def replay_loop(
    tokenizer: HubTokenizer, chat: ChatTemplate, played: list[Played], *, scale: float
) -> tuple[AgentLoop, ReplayEngine]:
    """A loop over trajectories that are known."""
    engine = ReplayEngine(tokenizer, played, chat.end_of_turn, scale=scale)
    return AgentLoop(engine, chat, Toolbox([ReplayTool(engine)]), UNLIMITED, SamplingParams()), engine


async def _play(loop: AgentLoop, count: int) -> list[TrajectoryResult]:
    results: list[TrajectoryResult] = []
    runner = RolloutRunner(
        loop,
        lambda task, result: Reward(1.0),
        lambda result, task: results.append(result),
        schedule=Schedule(concurrency=count),
        retries=0,
    )
    await runner.run(tasks(count))
    assert not any(result.masked for result in results)
    return results


async def _floor(played: list[Played]) -> float:
    """CPU seconds of the waits alone."""

    async def one(turns: Played) -> None:
        for turn in turns:
            await asyncio.sleep(turn.engine_s)
            if turn.tool_s is not None:
                await asyncio.sleep(turn.tool_s)

    before = time.process_time()
    await asyncio.gather(*(one(turns) for turns in played))
    return time.process_time() - before


async def _memory_kib(tokenizer: HubTokenizer, chat: ChatTemplate) -> float:
    """Memory of one trajectory in its last turn, beyond its tokens, in KiB."""
    played = [(Turn(0.2, 0.2),) * (TURNS - 1) + (Turn(3600.0, None),)] * TRAJECTORIES
    loop, engine = replay_loop(tokenizer, chat, played, scale=1.0)
    gc.collect()
    before = resident_kib(os.getpid())
    playing = asyncio.create_task(_play(loop, TRAJECTORIES))
    while engine.statistics().finished < TRAJECTORIES * (TURNS - 1) or engine.statistics().running < TRAJECTORIES:
        await asyncio.sleep(0.05)
    gc.collect()
    grown = resident_kib(os.getpid()) - before
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    result = (
        await _play(replay_loop(tokenizer, chat, [(Turn(0.0, 0.0),) * (TURNS - 1) + (Turn(0.0, None),)], scale=1)[0], 1)
    )[0]
    ids = len(result.trajectory.ids)
    # A pointer for each id in its segment and in the request of the turn that runs, one for each logprob.
    tokens_kib = (2 * ids + len(result.trajectory.logprobs)) * 8 / 1024
    return grown / TRAJECTORIES - tokens_kib


async def rows() -> list[Row]:
    tokenizer = HubTokenizer(find_model("smollm2"))
    chat = ChatTemplate(tokenizer)
    played: list[Played] = [(Turn(0.5, 0.5),) * (TURNS - 1) + (Turn(0.5, None),)] * TRAJECTORIES
    await _play(replay_loop(tokenizer, chat, played[:10], scale=0.01)[0], 10)
    memory = await _memory_kib(tokenizer, chat)
    costs = []
    for _ in range(ROUNDS):
        loop, _engine = replay_loop(tokenizer, chat, played, scale=1.0)
        before = time.process_time()
        await _play(loop, TRAJECTORIES)
        costs.append((time.process_time() - before - await _floor(played)) / (TRAJECTORIES * TURNS) * 1e3)
    where = f"{TRAJECTORIES} trajectories of {TURNS} turns at once in one process, {ROUNDS} rounds"
    return [
        figure("loop: CPU a turn", median(costs), "ms", most=1.0, against=where),
        figure("loop: memory a trajectory beyond its tokens", memory, "KiB", most=100.0, against=where),
    ]
