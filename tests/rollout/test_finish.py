"""Finish tools: the answer that ends a trajectory, alone and beside other calls, in time and at a limit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service import Cause
from rollout.dump import record_of
from rollout.engines import FinishReason, SamplingParams
from rollout.loop import (
    AgentLoop,
    CallTools,
    Finish,
    Generate,
    RequestState,
    StopReason,
    Task,
    TrajectoryMachine,
    TrajectoryResult,
)
from rollout.testing import ScriptedEngine, ScriptedTool
from rollout.tokens import ChatTemplate, HubTokenizer, SegmentKind
from rollout.tools import InfraError, Toolbox, ToolOutcome, ToolResponse
from rollout.tools.finish import FinishTool
from tests.rollout.scripted import NO_LIMITS, tool_call

TASK = Task("u", ({"role": "user", "content": "Where?"},), "6", "test", "here:1")


class Picky(FinishTool):
    """Wants a file name."""

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        return None if arguments["message"].endswith(".py") else 'the argument "message" must be a file'


ECHO, RIGHT, WRONG = (
    tool_call("echo", text="a"),
    tool_call("finish", message="a.py"),
    tool_call("finish", message="a.txt"),
)


class Played:
    """A scripted model with a finish tool and another one."""

    def __init__(self, tokenizer: HubTokenizer, chat: ChatTemplate, answer: Any = "6") -> None:
        self._tokenizer, self._chat = tokenizer, chat
        self.echo = ScriptedTool(lambda _: answer)
        self.engine: ScriptedEngine | None = None

    async def play(self, turns: Sequence[str], **limits: int) -> TrajectoryResult:
        self.engine = ScriptedEngine(self._tokenizer, turns, vocab_size=49152)
        tools = Toolbox([self.echo, Picky()])
        bounds = dataclasses.replace(NO_LIMITS, **limits)
        loop = AgentLoop(self.engine, self._chat, tools, bounds, SamplingParams())
        return await loop.run(TASK, index=0, seed=1)


@pytest.fixture
def played(tokenizer: HubTokenizer, chat: ChatTemplate) -> Played:
    return Played(tokenizer, chat)


async def test_answer_ends_the_trajectory_after_its_turn_and_is_kept(played: Played) -> None:
    result = await played.play([ECHO, f"There.\n{RIGHT}", "never"])
    assert (result.state, result.stop_reason, result.cause) == (
        RequestState.COMPLETED,
        StopReason.ANSWERED,
        Cause.POLICY,
    )
    last = result.tool_calls[-1]
    assert (last.turn, last.name, last.arguments, last.outcome) == (2, "finish", {"message": "a.py"}, ToolOutcome.OK)
    assert result.turns == 2
    assert result.final_text == f"There.\n{RIGHT}"
    # The last ids are the model's own: nothing is appended that no turn follows.
    assert result.trajectory.segments[-1].kind is SegmentKind.SAMPLED
    record = record_of(result, TASK, step=1, model="scripted", decode=lambda ids: "")
    assert json.loads(json.dumps(record))["stop_reason"] == "answered"


async def test_calls_beside_the_answer_are_not_run_and_are_said_to_be_so(played: Played) -> None:
    result = await played.play([ECHO + RIGHT + ECHO + "<tool_call>x</tool_call>"])
    assert played.echo.calls == []
    assert [record.outcome for record in result.tool_calls] == [
        ToolOutcome.ENDED,
        ToolOutcome.OK,
        ToolOutcome.ENDED,
        ToolOutcome.ENDED,
    ]
    assert result.stop_reason is StopReason.ANSWERED


async def test_failing_service_beside_the_answer_does_not_mask_it(tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    played = Played(tokenizer, chat, InfraError("the executor is gone"))
    result = await played.play([ECHO + RIGHT])
    assert (result.stop_reason, result.masked) == (StopReason.ANSWERED, False)


async def test_two_answers_of_a_turn_are_both_recorded(played: Played) -> None:
    result = await played.play([RIGHT + tool_call("finish", message="b.py")])
    said = [(record.arguments, record.outcome) for record in result.tool_calls]
    assert said == [({"message": "a.py"}, ToolOutcome.OK), ({"message": "b.py"}, ToolOutcome.OK)]
    assert result.stop_reason is StopReason.ANSWERED


async def test_answer_that_is_wrong_in_form_is_said_to_be_and_may_be_mended(played: Played) -> None:
    turns = [ECHO + WRONG, tool_call("finish"), '<tool_call>{"name": "finish"</tool_call>', RIGHT]
    result = await played.play(turns)
    assert [record.outcome for record in result.tool_calls] == [
        ToolOutcome.OK,  # what stood beside a wrong answer is run: the trajectory goes on
        ToolOutcome.BAD_ARGUMENTS,
        ToolOutcome.BAD_ARGUMENTS,
        ToolOutcome.MALFORMED,
        ToolOutcome.OK,
    ]
    assert 'the argument "message" must be a file' in str(result.messages)
    assert (result.stop_reason, result.turns) == (StopReason.ANSWERED, 4)


@pytest.mark.parametrize(("last", "reason"), [(RIGHT, StopReason.ANSWERED), (WRONG, StopReason.TURNS)])
async def test_answer_in_the_last_turn_counts(played: Played, last: str, reason: StopReason) -> None:
    result = await played.play([ECHO, ECHO + last, "never"], max_turns=2)
    assert (result.stop_reason, result.turns) == (reason, 2)
    assert len(played.echo.calls) == 1
    refused = ToolOutcome.ENDED if last is RIGHT else ToolOutcome.OVER_BUDGET
    assert result.tool_calls[1].outcome is refused


async def test_answer_is_taken_when_no_tool_calls_are_left(played: Played) -> None:
    result = await played.play([ECHO + ECHO, ECHO + RIGHT], max_tool_calls=2)
    assert (result.stop_reason, len(played.echo.calls)) == (StopReason.ANSWERED, 2)


async def test_any_tool_may_end_a_trajectory_after_its_turn(tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    played = Played(tokenizer, chat, ToolResponse("over", ToolOutcome.OK, final=True))
    result = await played.play([ECHO + ECHO, "never"])
    assert (result.stop_reason, result.turns, len(played.echo.calls)) == (StopReason.ANSWERED, 1, 2)


def machine(**limits: float) -> TrajectoryMachine:
    return TrajectoryMachine(dataclasses.replace(NO_LIMITS, **limits), prompt_tokens=10, max_model_tokens=1000)  # type: ignore[arg-type]


def test_limits_are_looked_at_after_the_answer() -> None:
    life = machine(max_turns=1)
    life.start()
    assert life.generated(tokens=5, finish=FinishReason.STOP, calls=3, finals=1) == CallTools(0, None)
    assert life.fork().answered(tokens=0, charged_s=0, final=True) == Finish(StopReason.ANSWERED)
    assert life.answered(tokens=7, charged_s=0) == Finish(StopReason.TURNS)
    assert life.usage.response_tokens == 5


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 5), st.booleans())
def test_whatever_a_turn_asks_for_the_machine_ends_or_goes_on(others: int, finals: int, most: int, final: bool) -> None:
    life = machine(max_tool_calls=most)
    life.start()
    if others + finals == 0:
        return
    decision = life.generated(tokens=5, finish=FinishReason.STOP, calls=others + finals, finals=finals)
    assert isinstance(decision, CallTools)
    assert decision.run == max(0, min(others, most - finals))
    following = life.answered(tokens=5, charged_s=0, final=final and finals > 0)
    assert isinstance(following, Finish) == (final and finals > 0)
    assert isinstance(following, Generate | Finish)
