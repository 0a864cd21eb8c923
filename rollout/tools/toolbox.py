"""Answers the calls of a turn: in parallel under a cap, in the order in which they were made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fairbox.errors import ConfigError
from rollout.tools.base import Tool, ToolOutcome, ToolResponse
from rollout.tools.hermes import MalformedCall, ToolCall

__all__ = ["Toolbox"]


class Toolbox:
    """The tools that a model is offered. `max_parallel_calls` bounds the calls of one turn that run at once."""

    def __init__(self, tools: Sequence[Tool], *, max_parallel_calls: int = 4) -> None:
        if max_parallel_calls < 1:
            raise ConfigError(f"max_parallel_calls is {max_parallel_calls}, must be at least 1")
        self._tools = {tool.schema.name: tool for tool in tools}
        if len(self._tools) != len(tools):
            raise ConfigError("two tools have the same name")
        self._max_parallel_calls = max_parallel_calls

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """OpenAI function schemas, for the prompt."""
        return [tool.schema.openai() for tool in self._tools.values()]

    async def create(self, trajectory_id: str, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Prepares every tool for a trajectory; `options` by tool name."""
        for name, tool in self._tools.items():
            await tool.create(trajectory_id, **options.get(name, {}))

    async def release(self, trajectory_id: str) -> None:
        """Releases every tool, whatever the others do. Idempotent."""
        released = (tool.release(trajectory_id) for tool in self._tools.values())
        outcomes = await asyncio.gather(*released, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            raise failures[0]

    async def rewards(self, trajectory_id: str) -> dict[str, float]:
        """The tools' own rewards; tools that have none are left out."""
        rewards = {name: await tool.calc_reward(trajectory_id) for name, tool in self._tools.items()}
        return {name: reward for name, reward in rewards.items() if reward is not None}

    async def answer(
        self, trajectory_id: str, calls: Sequence[ToolCall | MalformedCall], *, run: int, time_limit_s: float | None
    ) -> list[ToolResponse]:
        """One response per call, in order. Only the first `run` calls are run. Raises the first InfraError."""
        slots = asyncio.Semaphore(self._max_parallel_calls)

        async def one(call: ToolCall | MalformedCall) -> ToolResponse:
            async with slots:
                return await self._answer(trajectory_id, call, time_limit_s)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(call)) for call in calls[:run]]
        except* Exception as failures:
            raise _first(failures) from None
        refused = ToolResponse("Error: not run, because no tool calls are left.", ToolOutcome.OVER_BUDGET)
        return [task.result() for task in tasks] + [refused] * (len(calls) - len(tasks))

    async def _answer(
        self, trajectory_id: str, call: ToolCall | MalformedCall, time_limit_s: float | None
    ) -> ToolResponse:
        if isinstance(call, MalformedCall):
            return ToolResponse(f"Error: the tool call is malformed: {call.problem}.", ToolOutcome.MALFORMED)
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            text = f"Error: there is no tool named {call.name[:64]!r}; there is: {known}."
            return ToolResponse(text, ToolOutcome.UNKNOWN_TOOL)
        problem = tool.schema.problem(call.arguments)
        if problem is not None:
            return ToolResponse(f"Error: {problem}.", ToolOutcome.BAD_ARGUMENTS)
        return await tool.execute(trajectory_id, call.arguments, time_limit_s=time_limit_s)


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """The first failure, out of however many levels of groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error
