"""Sums of two numbers, answered by nothing but the number.

No tool is offered: on two cores a model of this size pays for each token of a prompt, and a schema has hundreds.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

from fairbox.errors import ConfigError
from rollout.envs import Environment, EnvironmentSetup, environment
from rollout.loop import Task, TrajectoryResult
from rollout.rewards import Reward
from rollout.tools.registry import ToolSpec

_BEFORE = (
    {"role": "system", "content": "Add. Answer with the number alone."},
    {"role": "user", "content": "12 + 9"},
    {"role": "assistant", "content": "21"},
)
"""Without an example the model chats about the sum, and hardly any group has an answer to learn from."""
_NUMBER = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True)
class SumsConfig:
    """Nothing to set."""


@environment("train-demo", SumsConfig)
class Sums(Environment):
    """Sums from a file that `write_sums` wrote."""

    def __init__(self, config: SumsConfig, setup: EnvironmentSetup) -> None:
        if setup.data is None:
            raise ConfigError("data is none, must be a file of sums")
        lines = setup.data.read_text(encoding="utf-8").splitlines()
        self._pairs: list[tuple[int, int]] = [tuple(json.loads(line)) for line in lines[: setup.limit]]

    def tasks(self) -> list[Task]:
        """One for each sum."""
        return [
            Task(
                uid=f"{a}+{b}",
                messages=(*_BEFORE, {"role": "user", "content": f"{a} + {b}"}),
                ground_truth=str(a + b),
                data_source="sums",
                where=f"the sum {a} + {b}",
            )
            for a, b in self._pairs
        ]

    def tools(self) -> tuple[ToolSpec, ...]:
        """None."""
        return ()

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        """1 for the sum, less the further a number is from it, 0 for what is no number."""
        found = _NUMBER.fullmatch(result.final_text.strip())
        return Reward(1 / (1 + abs(int(found[0]) - int(task.ground_truth))) if found else 0.0)


def write_sums(train: Path, held_out: Path, *, largest: int, count: int, seed: int) -> None:
    """All sums of two numbers from 1 to `largest` in an order drawn by `seed`: `count` of them held out, the others to
    train on."""
    pairs = list(itertools.product(range(1, largest + 1), repeat=2))
    random.Random(seed).shuffle(pairs)
    for path, some in ((held_out, pairs[:count]), (train, pairs[count:])):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(pair) + "\n" for pair in some), encoding="utf-8")
