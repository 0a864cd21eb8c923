"""An environment whose reward a model of random weights can raise: the share of vowels in what it writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fairbox.config import setting
from rollout.envs.base import Environment, EnvironmentSetup
from rollout.envs.registry import environment
from rollout.loop import Task, TrajectoryResult
from rollout.rewards import Reward
from rollout.tools.registry import ToolSpec


@dataclass(frozen=True)
class VowelsConfig:
    """Settings."""

    wanted: str = setting("aeiou", help="Letters that count.")


@environment("vowels", VowelsConfig)
class Vowels(Environment):
    """`limit` problems, 4 at most, without tools."""

    def __init__(self, config: VowelsConfig, setup: EnvironmentSetup) -> None:
        self._wanted = config.wanted
        self._count = min(4, setup.limit or 4)

    def tasks(self) -> list[Task]:
        return [
            Task(f"v{n}", ({"role": "user", "content": "Write " * (n + 1)},), "", "vowels", f"vowels:{n}")
            for n in range(self._count)
        ]

    def tools(self) -> tuple[ToolSpec, ...]:
        return ()

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        letters = [letter for letter in result.final_text.lower() if letter.isalpha()]
        return Reward(sum(letter in self._wanted for letter in letters) / max(1, len(letters)))


class Hampered(Vowels):
    """Vowels whose score waits for `before` first, and goes wrong where that does."""

    def __init__(self, before: Callable[[Task], Awaitable[None]], limit: int | None = None) -> None:
        super().__init__(VowelsConfig(), EnvironmentSetup(limit=limit))
        self._before = before

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        await self._before(task)
        return await super().score(task, result)
