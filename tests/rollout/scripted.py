"""Short forms for rollouts whose model follows a script."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
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


SCRIPTED = """
import asyncio, sys
from pathlib import Path
from rollout import engine_choice
from rollout.cli import main
from rollout.testing import ScriptedEngine
from rollout.tokens import HubTokenizer
from tests.rollout.scripted import tool_call

TURNS = [tool_call("code_interpreter", code="print(6 * 7)"), "#### 6"]

class Engine(ScriptedEngine):
    first = None

    async def generate(self, request):
        self.first = self.first or request.trajectory_id
        while request.trajectory_id != self.first and not Path(sys.argv[1]).exists():
            await asyncio.sleep(0.02)
        return await super().generate(request)

engine_choice.make_engine = lambda _, folder: Engine(HubTokenizer(folder), TURNS, vocab_size=49152)
sys.exit(main(sys.argv[2:]))
"""
"""The command with a model that calls the code interpreter once in each trajectory: in its first at once, in the others
when a file exists."""


def scripted_command(goes_on: Path, *words: str) -> list[str]:
    """`fairbox rollout` with such a model."""
    return [sys.executable, "-c", SCRIPTED, str(goes_on), "rollout", *words]
