"""Duration of a batch, against the best that any schedule could do, and against turns in lockstep.

Lengths and tool times are drawn from real trajectories (`replay`), and time runs faster. The ideal is the
larger of two: all work divided by the number of places, and the longest trajectory. No schedule can beat it. In
lockstep, as in batched generation, every turn of a batch waits for its slowest member; this is computed from the same
draws.
"""

from __future__ import annotations

import heapq
import time

from benchmarks.rollout.loop import replay_loop, tasks
from benchmarks.rollout.replay import Played, draws
from benchmarks.rows import Row, figure
from rollout.engines import find_model
from rollout.loop import RolloutRunner, Schedule
from rollout.rewards import Reward
from rollout.tokens import ChatTemplate, HubTokenizer

TRAJECTORIES = 4_096
PLACES = 64
"""Few beside the trajectories: no schedule knows their lengths before, so at the end some places stay empty."""
RUN_S = 50.0
"""Duration of the ideal schedule, which the time scale is chosen for."""


def _work(played: Played) -> float:
    return sum(turn.engine_s + (turn.tool_s or 0.0) for turn in played)


def _ideal(trajectories: list[Played]) -> float:
    works = [_work(played) for played in trajectories]
    return max(sum(works) / PLACES, *works)


def _costless(trajectories: list[Played]) -> float:
    """First come, first served, by a loop that costs nothing."""
    free = [0.0] * PLACES
    for played in trajectories:
        heapq.heapreplace(free, free[0] + _work(played))
    return max(free)


def _lockstep(trajectories: list[Played]) -> float:
    total = 0.0
    for start in range(0, len(trajectories), PLACES):
        batch = trajectories[start : start + PLACES]
        for number in range(max(map(len, batch))):
            turns = [played[number] for played in batch if number < len(played)]
            total += max(turn.engine_s for turn in turns) + max(turn.tool_s or 0.0 for turn in turns)
    return total


async def rows() -> list[Row]:
    tokenizer = HubTokenizer(find_model("smollm2"))
    chat = ChatTemplate(tokenizer)
    trajectories = draws(TRAJECTORIES, seed=1)
    ideal = _ideal(trajectories)
    scale = RUN_S / ideal
    loop, _ = replay_loop(tokenizer, chat, trajectories, scale=scale)
    runner = RolloutRunner(
        loop,
        lambda task, result: Reward(1.0),
        lambda result, task: None,
        schedule=Schedule(concurrency=PLACES),
        retries=0,
    )
    before = time.monotonic()
    await runner.run(tasks(TRAJECTORIES))
    took = (time.monotonic() - before) / scale
    where = f"{TRAJECTORIES} trajectories, {PLACES} at once, {1 / scale:.0f} times faster than real"
    return [
        figure("schedule: makespan / ideal", took / ideal, "x", most=1.05, against=where),
        figure("schedule: first come, first served, at no cost / ideal", _costless(trajectories) / ideal, "x"),
        figure("schedule: lockstep / makespan", _lockstep(trajectories) / took, "x", least=2.0, against=where),
    ]
