"""Trajectories that are forked between two turns: what they share, what is their own, and what can't be forked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from executor_service import Cause
from fairbox.errors import FieldErrors
from rollout.dump import record_of
from rollout.engines import GenerationRequest, SamplingParams
from rollout.loop import AgentLoop, BranchPoint, Limits, RequestState, StopReason, Task, TrajectoryRun
from rollout.stack import LocalStack
from rollout.testing import ScriptedEngine, ScriptedTool
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import BranchRefused, InfraError, Tool, Toolbox
from tests.rollout.scripted import NO_LIMITS, tool_call
from tests.rollout.services import executor_status, interpreter, nothing_left

pytestmark = pytest.mark.asyncio(loop_scope="module")

TASK = Task("u", ({"role": "user", "content": "What?"},), "6", "test", "here:1")


class BranchingTool(ScriptedTool):
    """Notes who was forked from whom."""

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        self.events += [f"branch {branch}" for branch in branches]


class Played:
    """A loop whose trajectories say what `lines` has for them."""

    def __init__(self, tokenizer: HubTokenizer, chat: ChatTemplate, tools: list[Tool], limits: Limits) -> None:
        self.lines: dict[str, list[str]] = {}
        self.engine = ScriptedEngine(tokenizer, self._say, vocab_size=49152)
        self.loop = AgentLoop(self.engine, chat, Toolbox(tools), limits, SamplingParams())

    def _say(self, request: GenerationRequest, turn: int) -> str:
        return self.lines[request.trajectory_id].pop(0)

    async def open(self, stack: AsyncExitStack, *lines: str) -> TrajectoryRun:
        run = await stack.enter_async_context(self.loop.open(TASK, index=0, seed=1))
        self.lines[run.trajectory_id] = list(lines)
        return run

    async def branch(self, stack: AsyncExitStack, run: TrajectoryRun, *lines: Sequence[str]) -> list[TrajectoryRun]:
        branches = await self.loop.branch(run, len(lines))
        for branch, said in zip(branches, lines, strict=True):
            await stack.enter_async_context(branch)
            self.lines[branch.trajectory_id] = list(said)
        return branches


def code(text: str) -> str:
    return tool_call("code_interpreter", code=text)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    async with LocalStack() as stack:
        yield stack


async def test_branches_of_a_session_go_on_for_themselves_with_the_same_tokens_before(
    stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate
) -> None:
    async with AsyncExitStack() as open_runs:
        tool = await open_runs.enter_async_context(interpreter(stack, mode="session"))
        played = Played(tokenizer, chat, [tool], NO_LIMITS)
        run = await played.open(open_runs, code("x = [1]\nx"), code("x"), "done")
        assert await run.turn()
        branches = await played.branch(
            open_runs, run, *([code(f"x.append({n}); x"), code("len(x), sum(x)"), f"#### {n}"] for n in (7, 8, 9))
        )
        assert (await executor_status(stack)).sessions == 4
        await asyncio.gather(run.play(), *(branch.play() for branch in branches))
        result, results = run.result(), [branch.result() for branch in branches]

    texts = [[each.text for each in found.tool_calls] for found in results]
    assert texts == [["[1]", f"[1, {n}]", f"(2, {n + 1})"] for n in (7, 8, 9)]
    assert [each.text for each in result.tool_calls] == ["[1]", "[1]"]
    shared = result.trajectory.segments[:3]  # prompt, the first turn, its answer
    common = sum(len(segment.ids) for segment in shared[1:])
    assert len({found.trajectory_id for found in [result, *results]}) == 4
    for n, found in zip((7, 8, 9), results, strict=True):
        assert found.trajectory.segments[:3] == shared
        for name in ("response_ids", "response_mask", "logprobs"):
            assert getattr(found.trajectory, name)[:common] == getattr(result.trajectory, name)[:common]
        assert (found.state, found.stop_reason, found.turns) == (RequestState.COMPLETED, StopReason.ANSWERED, 4)
        assert (found.parent_id, found.branch_point) == (result.trajectory_id, BranchPoint(1, common))
        assert found.final_text == f"#### {n}"
        request = next(each for each in played.engine.requests if each.trajectory_id == found.trajectory_id)
        assert request.input_ids == tuple(i for segment in shared for i in segment.ids)
        record = record_of(found, TASK, step=1, model="m", decode=chat.decode_plain)
        assert (record["parent_id"], record["branch_point"]) == (
            result.trajectory_id,
            {"turns": 1, "response_tokens": common},
        )
    assert (result.parent_id, result.branch_point) == (None, None)
    seeds = [each.params.seed for each in played.engine.requests]
    assert len(set(seeds)) == len(seeds)
    await nothing_left(stack)


async def test_limits_go_on_from_what_the_parent_had_used(tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    limits = Limits(None, None, 3, None, None, None)
    async with AsyncExitStack() as open_runs:
        played = Played(tokenizer, chat, [BranchingTool(lambda _: "6")], limits)
        run = await played.open(open_runs, *[tool_call("echo", text="a")] * 3)
        await run.turn()
        (branch,) = await played.branch(open_runs, run, [tool_call("echo", text="b")] * 3)
        (deeper,) = await played.branch(open_runs, branch, ["done"])
        for each in (run, branch, deeper):
            await each.play()
        assert [each.result().turns for each in (run, branch, deeper)] == [3, 3, 2]
        assert branch.result().stop_reason is StopReason.TURNS
        assert deeper.result().parent_id == branch.trajectory_id


async def test_every_branch_is_released_for_itself(tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    tool = BranchingTool(lambda _: "6")
    async with AsyncExitStack() as open_runs:
        played = Played(tokenizer, chat, [tool], NO_LIMITS)
        run = await played.open(open_runs)
        branches = await played.branch(open_runs, run, [], [])  # before the first turn
    ids = [run.trajectory_id, *(branch.trajectory_id for branch in branches)]
    assert tool.events[:3] == [f"create {ids[0]}", f"branch {ids[1]}", f"branch {ids[2]}"]
    assert sorted(tool.events[3:]) == sorted(f"release {each}" for each in ids)


async def test_what_can_not_be_forked_refuses_with_its_reason(tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    async with AsyncExitStack() as open_runs:
        played = Played(tokenizer, chat, [ScriptedTool(lambda _: "6")], NO_LIMITS)
        run = await played.open(open_runs, tool_call("echo", text="a"), "done")
        with pytest.raises(BranchRefused, match=r"the tool echo can't branch: ScriptedTool has no method branch\(\)"):
            await played.loop.branch(run, 2)
        with pytest.raises(FieldErrors, match="count is 0, must be at least 1"):
            await played.loop.branch(run, 0)
        turning = asyncio.ensure_future(run.turn())
        await asyncio.sleep(0)
        with pytest.raises(BranchRefused, match="is in the middle of a turn"):
            await played.loop.branch(run, 1)
        with pytest.raises(RuntimeError, match="is in the middle of a turn"):
            await run.turn()
        with pytest.raises(RuntimeError, match="has not ended"):
            run.result()
        assert await turning
        assert not await run.turn()  # it went on as if nothing had been asked
        with pytest.raises(BranchRefused, match="has ended: answered"):
            await played.loop.branch(run, 1)
        with pytest.raises(RuntimeError, match="has ended"):
            await run.turn()
        assert run.result().cause is Cause.POLICY


async def test_failure_of_a_branch_is_not_its_siblings(tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    def answer(arguments: Any) -> str | Exception:
        return InfraError("gone") if arguments["text"] == "bad" else "6"

    async with AsyncExitStack() as open_runs:
        played = Played(tokenizer, chat, [BranchingTool(answer)], NO_LIMITS)
        run = await played.open(open_runs, tool_call("echo", text="a"))
        await run.turn()
        branches = await played.branch(open_runs, run, [tool_call("echo", text="bad")], ["done"])
        await asyncio.gather(*(branch.play() for branch in branches))
        assert [branch.result().masked for branch in branches] == [True, False]
