"""Answers the calls of a turn: in parallel under a cap, in the order in which they were made.

Invariants: each call has one response, in its place; at most `max_parallel_calls` of a turn run at once, and start in
their order (a call that waits for another call of its tool takes up no room); calls of finish tools come first, and if
one of them ends the trajectory, no other call of the turn is run; no response is longer than `MAX_RESPONSE_CHARS` and a
marker.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairbox.errors import ConfigError
from fairbox.gathering import all_of
from fairbox.telemetry import tracing
from rollout.cleanup import to_its_end
from rollout.tools.base import InfraError, Tool, ToolOutcome, ToolResponse
from rollout.tools.formats.calls import MalformedCall, ToolCall
from rollout.tools.statistics import CallBoard, ToolStatistics
from rollout.tools.text import cut_text

MAX_RESPONSE_CHARS = 65_536
"""A guard against tools that cut nothing themselves; more than most contexts hold."""
_SHORTEST_S = 0.001
"""Left to a call whose trajectory has no time left: tools take positive times."""
_TOO_MANY = ToolResponse("Error: not run, because no tool calls are left.", ToolOutcome.OVER_BUDGET)
_HAS_ENDED = ToolResponse(
    "Error: not run, because another call of this turn ended the conversation.", ToolOutcome.ENDED
)


class Toolbox:
    """The tools that a model is offered. `max_parallel_calls` bounds the calls of one turn that run at once."""

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        max_parallel_calls: int = 4,
    ) -> None:
        if max_parallel_calls < 1:
            raise ConfigError(f"max_parallel_calls is {max_parallel_calls}, must be at least 1")
        self._tools = {tool.schema.name: tool for tool in tools}
        if len(self._tools) != len(tools):
            raise ConfigError("two tools have the same name")
        self._max_parallel_calls = max_parallel_calls
        self._boards = {name: CallBoard() for name in self._tools}

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """OpenAI function schemas, for the prompt."""
        return [tool.schema.openai() for tool in self._tools.values()]

    def statistics(self) -> dict[str, ToolStatistics]:
        """Live figures of each tool's calls, by the tool's name."""
        return {
            name: self._boards[name].statistics(waiting_to_begin=tool.waiting_to_begin)
            for name, tool in self._tools.items()
        }

    async def create(self, trajectory_id: str, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Prepares every tool for a trajectory; `options` by tool name."""
        for name, tool in self._tools.items():
            await tool.create(trajectory_id, **options.get(name, {}))

    async def ready(self) -> None:
        """Returns when the services of all tools work. Raises InfraError if one has failed for too long."""
        for tool in self._tools.values():
            await tool.ready()

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """Forks the state that every tool has of a trajectory, for each of the trajectories `branches`. All or none.

        Raises BranchRefused with the tool that can't and why, and InfraError.
        """
        for tool in self._tools.values():
            if type(tool).branch is Tool.branch:
                await tool.branch(trajectory_id, branches)  # refuses, and nothing has changed yet
        try:
            for tool in self._tools.values():
                await tool.branch(trajectory_id, branches)
        except BaseException:
            for branch in branches:
                with contextlib.suppress(Exception):  # the failure above is the one to be told
                    await to_its_end(self.release(branch))
            raise

    async def release(self, trajectory_id: str) -> None:
        """Releases every tool, whatever the others do. Idempotent."""
        await all_of(tool.release(trajectory_id) for tool in self._tools.values())

    async def rewards(self, trajectory_id: str) -> dict[str, float]:
        """The tools' own rewards: one under the tool's name, several under `tool/name`; tools that have none are left
        out."""
        rewards: dict[str, float] = {}
        for name, tool in self._tools.items():
            reward = await tool.calc_reward(trajectory_id)
            if isinstance(reward, Mapping):
                rewards |= {f"{name}/{part}": _finite(name, value) for part, value in reward.items()}
            elif reward is not None:
                rewards[name] = _finite(name, reward)
        return rewards

    async def answer(
        self, trajectory_id: str, calls: Sequence[ToolCall | MalformedCall], *, run: int, time_limit_s: float | None
    ) -> list[ToolResponse]:
        """One response per call, in order. Raises the first InfraError.

        Calls of finish tools are run first, and then, unless a response is final, the first `run` of the others.
        `time_limit_s` is what the trajectory has left; in a lane of calls that run one after another, each has what
        those before it left.
        """
        finishing = [index for index, call in enumerate(calls) if self._finishes(call)]
        others = [index for index in range(len(calls)) if index not in finishing]
        responses = await self._answers(trajectory_id, calls, finishing, time_limit_s)
        refused = _TOO_MANY
        if any(response.final for response in responses.values()):
            refused = _HAS_ENDED
        else:
            responses |= await self._answers(trajectory_id, calls, others[:run], time_limit_s)
        return [responses.get(index, refused) for index in range(len(calls))]

    async def rebuild(
        self, trajectory_id: str, calls: Sequence[ToolCall | MalformedCall], responses: Sequence[ToolResponse]
    ) -> None:
        """Makes the calls of a turn again, of tools that keep state, so that they have what they had. Raises InfraError
        if one is not answered as it was: the state is another one then."""
        places = [place for place, call in enumerate(calls) if responses[place].outcome.ran and self._stateful(call)]
        again = await self._answers(trajectory_id, calls, places, None)
        for place in places:
            then, now = responses[place], again[place]
            if (then.text, then.outcome) != (now.text, now.outcome):
                name = getattr(calls[place], "name", "")
                raise InfraError(f"the state of tool {name} was lost, and its calls are answered otherwise now")

    def repeatable(self, calls: Sequence[ToolCall | MalformedCall]) -> bool:
        """Says whether all calls of a turn can be made again, though they may have run."""
        tools = [self._tools.get(call.name) for call in calls if isinstance(call, ToolCall)]
        return all(tool is None or tool.repeatable for tool in tools)

    def _stateful(self, call: ToolCall | MalformedCall) -> bool:
        tool = self._tools.get(call.name) if isinstance(call, ToolCall) else None
        return tool is not None and tool.stateful

    def finishing(self, calls: Sequence[ToolCall | MalformedCall]) -> int:
        """Number of the calls that are of finish tools."""
        return sum(map(self._finishes, calls))

    def _finishes(self, call: ToolCall | MalformedCall) -> bool:
        tool = self._tools.get(call.name) if isinstance(call, ToolCall) else None
        return tool is not None and tool.finishes

    async def _answers(
        self,
        trajectory_id: str,
        calls: Sequence[ToolCall | MalformedCall],
        places: Sequence[int],
        time_limit_s: float | None,
    ) -> dict[int, ToolResponse]:
        """The responses to the calls at these places."""
        calls = [calls[place] for place in places]
        lanes = [self._lane(call) for call in calls]
        turns = {lane: asyncio.Lock() for lane in lanes if lane is not None}
        room = asyncio.Semaphore(self._max_parallel_calls)  # both let those who wait in by their order
        responses: dict[int, ToolResponse] = {}
        failed: list[int] = []

        async def one(index: int, lane: str | None) -> None:
            async with turns[lane] if lane is not None else contextlib.nullcontext(), room:
                if failed:
                    return
                left = None if time_limit_s is None else max(_SHORTEST_S, time_limit_s - _used(lanes, responses, index))
                try:
                    responses[index] = await self._answer(trajectory_id, calls[index], left)
                except BaseException:
                    failed.append(index)
                    raise

        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for index, lane in enumerate(lanes):
                    group.create_task(one(index, lane))
        except* Exception as failures:
            failure = _first(failures)
        if failure is not None:  # out here: what is raised within `except*` comes out in a group before Python 3.11.4
            raise failure from None
        return {place: responses[index] for index, place in enumerate(places)}

    def charged_s(self, calls: Sequence[ToolCall | MalformedCall], responses: Sequence[ToolResponse]) -> float:
        """Seconds of a turn's calls that the model caused: those of its longest lane; waits are not charged."""
        times: dict[Any, float] = {}
        for index, (call, response) in enumerate(zip(calls, responses, strict=True)):
            key = self._lane(call) or index
            times[key] = times.get(key, 0.0) + response.run_s
        return max(times.values(), default=0.0)

    def _lane(self, call: ToolCall | MalformedCall) -> str | None:
        """The name of a tool whose calls run one after another; None for every other call."""
        tool = self._tools.get(call.name) if isinstance(call, ToolCall) else None
        return None if tool is None or tool.parallel else tool.schema.name

    async def _answer(
        self, trajectory_id: str, call: ToolCall | MalformedCall, time_limit_s: float | None
    ) -> ToolResponse:
        if isinstance(call, MalformedCall):
            return ToolResponse(f"Error: the tool call is malformed: {call.problem}.", ToolOutcome.MALFORMED)
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            text = f"Error: there is no tool named {call.name[:64]!r}. Available tools: {known}."
            return ToolResponse(text, ToolOutcome.UNKNOWN_TOOL)
        problem = tool.schema.problem(call.arguments)
        if problem is not None:
            return ToolResponse(f"Error: {problem}.", ToolOutcome.BAD_ARGUMENTS)
        response = await self._measured(tool, trajectory_id, call, time_limit_s)
        if response.reward is not None:
            _finite(call.name, response.reward)
        return self._cut(response)

    async def _measured(
        self, tool: Tool, trajectory_id: str, call: ToolCall, time_limit_s: float | None
    ) -> ToolResponse:
        name = tool.schema.name
        with self._boards[name].call(), tracing.span("rollout.tool_call", tool=name) as span:
            response = await tool.execute(trajectory_id, call.arguments, time_limit_s=time_limit_s)
            facts = {"outcome": response.outcome.value, "wait_s": response.wait_s, "run_s": response.run_s}
            span.set_attributes(tracing.named(facts))
            return response

    def _cut(self, response: ToolResponse) -> ToolResponse:
        # Tools cut their own output below this, where they know its size; what is longer has no marker yet.
        text, cut = cut_text(response.text, MAX_RESPONSE_CHARS)
        if not cut:
            return response
        whole = max(response.total_bytes, len(response.text.encode("utf-8", "replace")))
        return replace(response, text=text, truncated=True, total_bytes=whole)


def _used(lanes: Sequence[str | None], responses: Mapping[int, ToolResponse], index: int) -> float:
    """Seconds that the calls before this one in its lane took."""
    if lanes[index] is None:
        return 0.0
    return sum(responses[each].run_s for each in range(index) if lanes[each] == lanes[index])


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """The first failure, out of however many levels of groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


def _finite(name: str, reward: float) -> float:
    """A reward that is no number would spoil the mean of its group, and no dump takes it: the tool's defect, masked."""
    if not math.isfinite(reward):
        raise InfraError(f"tool {name} gave the reward {reward}, must be a finite number")
    return reward
