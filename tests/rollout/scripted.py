"""Short forms for rollouts whose model follows a script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rollout.loop import AgentLoop, Limits, RolloutRunner, Schedule, Task, TrajectoryResult
from rollout.loop.scoring import Score

NO_LIMITS = Limits(None, None, None, None, None, None)


def tool_call(name: str, **arguments: Any) -> str:
    """A call as the model of these tests writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def roll_out(
    loop: AgentLoop, score: Score, tasks: Sequence[Task], *, retries: int = 0, **schedule: Any
) -> list[tuple[Task, TrajectoryResult]]:
    """Trajectories that a run hands over, in its order. `schedule` are fields of Schedule."""
    done: list[tuple[Task, TrajectoryResult]] = []
    runner = RolloutRunner(
        loop,
        score,
        lambda result, task: done.append((task, result)),
        schedule=Schedule(**schedule),
        retries=retries,
        seed=1,
    )
    await runner.run(tasks)
    return done
