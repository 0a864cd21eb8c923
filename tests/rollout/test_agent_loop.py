"""The loop and the runner, with known turns: tokens, order, causes, masks, retries."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from executor_service import Cause
from rollout.engines import EngineUnavailable, FinishReason, GenerationRequest, GenerationResult, SamplingParams
from rollout.loop import (
    AgentLoop,
    Limits,
    RequestState,
    RolloutRunner,
    Schedule,
    StopReason,
    Task,
    TrajectoryResult,
)
from rollout.loop.scoring import Score
from rollout.rewards import Reward
from rollout.testing import LOGPROB, Script, ScriptedEngine, ScriptedTool
from rollout.tokens import ChatTemplate, HubTokenizer, SegmentKind
from rollout.tools import InfraError, Toolbox, ToolOutcome
from tests.rollout.scripted import NO_LIMITS, tool_call

CALL = tool_call("echo", text="six")
TASK = Task("u", ({"role": "user", "content": "What?"},), "6", "test", "here:1")

MakeLoop = Callable[..., tuple[AgentLoop, ScriptedEngine, ScriptedTool]]


@pytest.fixture
def make_loop(tokenizer: HubTokenizer, chat: ChatTemplate) -> MakeLoop:
    def make(
        turns: Sequence[str | Exception] | Script,
        answer: Callable[[Any], Any] = lambda _: "6",
        limits: Limits = NO_LIMITS,
        **engine: Any,
    ) -> tuple[AgentLoop, ScriptedEngine, ScriptedTool]:
        scripted = ScriptedEngine(tokenizer, turns, vocab_size=49152, **engine)
        tool = ScriptedTool(answer)
        return AgentLoop(scripted, chat, Toolbox([tool]), limits, SamplingParams()), scripted, tool

    return make


async def test_tool_turn_and_answer_make_one_exact_trajectory(make_loop: MakeLoop, chat: ChatTemplate) -> None:
    loop, engine, tool = make_loop([f"I call.\n{CALL}", "#### 6"])
    result = await loop.run(TASK, index=0, seed=1)
    assert (result.state, result.stop_reason, result.cause) == (
        RequestState.COMPLETED,
        StopReason.ANSWERED,
        Cause.POLICY,
    )
    assert [message["role"] for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert result.final_text == "#### 6"
    kinds = [segment.kind for segment in result.trajectory.segments]
    assert kinds == [SegmentKind.PROMPT, SegmentKind.SAMPLED, SegmentKind.TOOL, SegmentKind.SAMPLED]
    # What the engine was given is what is kept, and it is what the template renders for the whole conversation.
    assert engine.requests[1].input_ids == result.trajectory.ids[: len(engine.requests[1].input_ids)]
    conversation = [{"role": "system", "content": chat_system(chat, loop)}, *result.messages[:3]]
    assert engine.requests[1].input_ids == chat.prompt_ids(conversation)
    marked = [p for p, m in zip(result.trajectory.logprobs, result.trajectory.response_mask, strict=True) if m]
    assert marked == [LOGPROB] * sum(result.trajectory.response_mask)
    assert [event.split()[0] for event in tool.events] == ["create", "execute", "release"]
    assert {event.split()[1] for event in tool.events} == {result.trajectory_id}


def chat_system(chat: ChatTemplate, loop: AgentLoop) -> str:
    text = chat.prompt_text(TASK.messages, loop.tools.schemas)
    return text.removeprefix("<|im_start|>system\n").partition("<|im_end|>")[0]


async def test_malformed_call_is_answered_and_the_model_may_try_again(make_loop: MakeLoop) -> None:
    loop, _, tool = make_loop(["<tool_call>{'a': 1}</tool_call>", CALL, "#### 6"])
    result = await loop.run(TASK, index=0, seed=1)
    assert [call.outcome for call in result.tool_calls] == [ToolOutcome.MALFORMED, ToolOutcome.OK]
    assert "Expecting property name enclosed in double quotes" in result.messages[2]["content"]
    assert len(tool.calls) == 1
    assert result.stop_reason is StopReason.ANSWERED


async def test_several_calls_of_a_turn_are_answered_in_order_in_one_boundary(make_loop: MakeLoop) -> None:
    calls = CALL + CALL.replace("six", "seven") + "<tool_call>x</tool_call>"
    loop, engine, _ = make_loop([calls, "done"], lambda arguments: f"<{arguments['text']}>")
    result = await loop.run(TASK, index=0, seed=1)
    assert [message["content"] for message in result.messages[2:4]] == ["<six>", "<seven>"]
    assert [call.outcome.value for call in result.tool_calls] == ["ok", "ok", "malformed"]
    assert len(engine.requests) == 2
    assert [segment.kind for segment in result.trajectory.segments].count(SegmentKind.TOOL) == 1


async def test_turn_cut_off_by_its_length_is_closed_before_the_answer(
    make_loop: MakeLoop, tokenizer: HubTokenizer, chat: ChatTemplate
) -> None:
    room = len(tokenizer.encode(CALL))
    loop, engine, _ = make_loop([CALL + " and so on", "ok"], limits=Limits(None, None, None, None, None, room))
    result = await loop.run(TASK, index=0, seed=1)
    assert tokenizer.decode(engine.requests[1].input_ids).endswith(
        f"{CALL}<|im_end|>\n<|im_start|>tool\n6<|im_end|>\n<|im_start|>assistant\n"
    )
    assert result.trajectory.segments[2].ids[0] == chat.end_of_turn


async def test_trajectory_that_the_service_failed_is_masked_and_raises_nothing(make_loop: MakeLoop) -> None:
    loop, _, tool = make_loop([CALL, "never"], lambda _: InfraError("the executor is gone"))
    result = await loop.run(TASK, index=0, seed=1)
    assert (result.state, result.stop_reason, result.cause, result.masked) == (
        RequestState.FAILED,
        StopReason.INFRA,
        Cause.INFRA,
        True,
    )
    assert result.error == "the executor is gone"
    assert "gone" not in str(result.messages)
    assert [(call.outcome, call.text) for call in result.tool_calls] == [(ToolOutcome.INFRA, "")]
    assert tool.events[-1] == f"release {result.trajectory_id}"
    assert sum(result.trajectory.response_mask) > 0


async def test_engine_failure_is_the_services(make_loop: MakeLoop) -> None:
    loop, _, _ = make_loop([EngineUnavailable("broken")])
    result = await loop.run(TASK, index=0, seed=1)
    assert (result.cause, result.error, result.turns) == (Cause.INFRA, "broken", 0)


async def test_a_turn_that_takes_too_long_is_the_services_failure(make_loop: MakeLoop) -> None:
    loop, engine, _ = make_loop(["#### 6"])
    sampled = engine.generate

    async def slow(request: GenerationRequest) -> GenerationResult:
        assert request.time_limit_s == 60.0
        return replace(await sampled(request), finish=FinishReason.ABORT)

    engine.generate = slow  # type: ignore[method-assign]
    result = await replace(loop, turn_timeout_s=60.0).run(TASK, index=0, seed=1)
    assert (result.cause, result.stop_reason, result.masked) == (Cause.INFRA, StopReason.INFRA, True)
    assert result.error == "a turn was not done within 60 s"


async def test_the_engines_time_is_not_charged(make_loop: MakeLoop) -> None:
    """A busy machine changes no score."""
    loop, engine, _ = make_loop([CALL, "#### 6"], limits=Limits(max_tool_time_s=1.0))
    sampled = engine.generate

    async def slow(request: GenerationRequest) -> GenerationResult:
        return replace(await sampled(request), run_s=1000.0)

    engine.generate = slow  # type: ignore[method-assign]
    result = await loop.run(TASK, index=0, seed=1)
    assert (result.stop_reason, result.times.engine_s) == (StopReason.ANSWERED, 2000.0)


async def test_a_call_that_ends_cancelled_is_the_services_failure(make_loop: MakeLoop) -> None:
    def turn(request: GenerationRequest, number: int) -> str:
        raise asyncio.CancelledError

    loop, _, tool = make_loop(turn)
    sink: Sink = []
    async with asyncio.timeout(30):
        await runner(loop, sink).run([TASK])
    [(result, _)] = sink
    assert (result.cause, result.error) == (Cause.INFRA, "a call was cancelled that nobody here has cancelled")
    assert tool.events[-1] == f"release {result.trajectory_id}"


async def test_response_length_holds_with_the_tools_answers(make_loop: MakeLoop) -> None:
    limits = Limits(60, None, None, None, None, None)
    loop, _, tool = make_loop([CALL, "never"], lambda _: "word " * 100, limits=limits)
    result = await loop.run(TASK, index=0, seed=1)
    assert result.stop_reason is StopReason.RESPONSE_LENGTH
    assert len(result.trajectory.response_ids) <= 60
    assert result.messages[-1]["role"] == "assistant"
    assert len(tool.calls) == 1


async def test_tools_are_released_when_a_trajectory_is_cancelled(make_loop: MakeLoop) -> None:
    loop, engine, tool = make_loop(["never"], delay_s=60)
    task = asyncio.ensure_future(loop.run(TASK, index=0, seed=1))
    while engine.statistics().running == 0:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.split()[0] for event in tool.events] == ["create", "release"]


async def test_turns_have_seeds_of_their_own_that_are_the_same_in_every_run(make_loop: MakeLoop) -> None:
    seeds = []
    for _ in range(2):
        loop, engine, _ = make_loop([CALL, CALL, "done"])
        await loop.run(TASK, index=0, seed=5)
        seeds.append([request.params.seed for request in engine.requests])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3


Sink = list[tuple[TrajectoryResult, Task]]


def runner(
    loop: AgentLoop,
    sink: Sink,
    *,
    retries: int = 0,
    score: Score = lambda task, result: Reward(1.0),
    **options: Any,
) -> RolloutRunner:
    return RolloutRunner(
        loop,
        score,
        lambda result, task: sink.append((result, task)),
        schedule=Schedule(**{"concurrency": 4} | options),
        retries=retries,
        seed=1,
    )


async def test_concurrency_is_capped_and_everything_ends_once(make_loop: MakeLoop) -> None:
    running: list[int] = []

    def turn(request: GenerationRequest, number: int) -> str:
        running.append(engine.statistics().running)
        return CALL if number == 0 else "#### 6"

    loop, engine, tool = make_loop(turn, delay_s=0.001)
    sink: Sink = []
    run = runner(loop, sink, samples_per_prompt=2)
    tasks = [Task(str(n), TASK.messages, "6", "test", f"here:{n}") for n in range(30)]
    await run.run(tasks)
    assert max(running) == 4
    assert sorted(result.index for result, _ in sink) == list(range(60))
    assert collections.Counter(result.uid for result, _ in sink) == {str(n): 2 for n in range(30)}
    assert len({result.trajectory_id for result, _ in sink}) == 60
    assert run.statistics().finished == run.statistics().planned == 60
    assert run.statistics().running == 0
    assert collections.Counter(event.split()[0] for event in tool.events) == {
        "create": 60,
        "execute": 60,
        "release": 60,
    }


async def test_no_two_turns_of_a_run_have_the_same_seed(make_loop: MakeLoop) -> None:
    loop, engine, _ = make_loop(lambda request, number: CALL if number < 3 else "#### 6")
    await runner(loop, [], samples_per_prompt=8).run([TASK] * 4)
    seeds = [request.params.seed for request in engine.requests]
    assert len(set(seeds)) == len(seeds) == 8 * 4 * 4


async def test_failed_trajectory_is_run_again_under_a_new_id(make_loop: MakeLoop) -> None:
    failures = [InfraError("once"), None]
    loop, engine, _ = make_loop([CALL, "#### 6"], lambda _: failures.pop(0) or "6")
    sink: Sink = []
    await runner(loop, sink, retries=1).run([TASK])
    ((result, _),) = sink
    assert (result.attempts, result.masked, result.reward) == (2, False, Reward(1.0))
    assert len({request.trajectory_id for request in engine.requests}) == 2
    assert result.trajectory.segments[0].ids == engine.requests[0].input_ids


async def test_trajectory_that_keeps_failing_is_masked_and_has_no_reward(make_loop: MakeLoop) -> None:
    loop, _, _ = make_loop([CALL], lambda _: InfraError("down"))
    sink: Sink = []
    run = runner(loop, sink, retries=1)
    await run.run([TASK])
    ((result, _),) = sink
    assert (result.attempts, result.masked, result.reward) == (2, True, None)
    assert run.statistics().masked == 1


async def test_defect_of_a_tool_or_a_reward_masks_one_trajectory_and_is_logged(
    make_loop: MakeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    loop, _, tool = make_loop([CALL, "#### 6"], lambda _: KeyError("a defect"))
    result = await loop.run(TASK, index=0, seed=1)
    assert (result.masked, result.error) == (True, "KeyError: 'a defect'")
    assert tool.events[-1].startswith("release")

    def score(task: Task, result: TrajectoryResult) -> Reward:
        raise KeyError("no rule")

    loop, _, _ = make_loop(["#### 6"])
    sink: Sink = []
    await runner(loop, sink, score=score).run([TASK])
    assert (sink[0][0].masked, sink[0][0].reward) == (True, None)
    assert "no rule" in str(sink[0][0].error)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


@pytest.mark.parametrize(
    ("reward", "named"),
    [(1, {"echo": 1}), ({"a": 1.0, "b/c": 0.5}, {"echo/a": 1.0, "echo/b/c": 0.5})],
)
async def test_a_tool_gives_one_number_or_several_by_name(
    tokenizer: HubTokenizer, chat: ChatTemplate, reward: float | dict[str, float], named: dict[str, float]
) -> None:
    tool = ScriptedTool(lambda _: "6", reward=reward)
    engine = ScriptedEngine(tokenizer, [CALL, "#### 6"], vocab_size=49152)
    result = await AgentLoop(engine, chat, Toolbox([tool]), NO_LIMITS, SamplingParams()).run(TASK, index=0, seed=1)
    assert (result.masked, result.tool_rewards) == (False, named)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), {"a": float("nan")}])
async def test_a_tools_reward_that_is_no_number_masks_its_trajectory(
    tokenizer: HubTokenizer, chat: ChatTemplate, reward: float | dict[str, float]
) -> None:
    tool = ScriptedTool(lambda _: "6", reward=reward)
    engine = ScriptedEngine(tokenizer, [CALL, "#### 6"], vocab_size=49152)
    result = await AgentLoop(engine, chat, Toolbox([tool]), NO_LIMITS, SamplingParams()).run(TASK, index=0, seed=1)
    assert (result.masked, result.tool_rewards) == (True, {})
    assert "must be a finite number" in str(result.error)


async def test_a_prompt_that_the_template_refuses_is_the_tasks_fault(make_loop: MakeLoop) -> None:
    loop, engine, tool = make_loop(["#### 6"])
    broken = Task("u", ({"role": "user"},), "6", "test", "here:7")
    result = await loop.run(broken, index=0, seed=1)
    assert (result.cause, result.stop_reason, result.masked) == (Cause.TASK, StopReason.BAD_PROMPT, False)
    assert str(result.error).startswith("here:7: ")
    assert (result.trajectory.ids, engine.requests) == ((), [])
    assert [event for event in tool.events if event.startswith("create")] == []


async def test_one_failure_does_not_reach_the_others(make_loop: MakeLoop) -> None:
    def turn(request: GenerationRequest, number: int) -> str | Exception:
        first = engine.requests[0].trajectory_id == request.trajectory_id
        return EngineUnavailable("broken") if first else "#### 6"

    loop, engine, _ = make_loop(turn)
    sink: Sink = []
    await runner(loop, sink).run([TASK] * 6)
    assert [result.masked for result, _ in sink].count(True) == 1
    assert len(sink) == 6


async def test_cancelled_run_has_handed_over_what_ended(make_loop: MakeLoop) -> None:
    def turn(request: GenerationRequest, number: int) -> str:
        if len(engine.requests) > 3:
            running.cancel()
        return "#### 6"

    loop, engine, _ = make_loop(turn)
    sink: Sink = []
    running = asyncio.ensure_future(runner(loop, sink, concurrency=1).run([TASK] * 10))
    with pytest.raises(asyncio.CancelledError):
        await running
    assert 3 <= len(sink) <= 4


async def test_stragglers_are_ended_when_their_group_is_full(make_loop: MakeLoop) -> None:
    stuck = asyncio.Event()

    async def answer_late(trajectory_id: str, **options: Any) -> None:
        tool.events.append(f"create {trajectory_id}")
        if len(tool.events) == 1:
            await stuck.wait()

    loop, engine, tool = make_loop(["#### 6"])
    tool.create = answer_late  # type: ignore[method-assign]
    sink: Sink = []
    run = runner(loop, sink, concurrency=3, samples_per_prompt=2, extra_samples=1)
    await run.run([TASK])
    assert [result.index for result, _ in sink] == [1, 2]
    assert (run.statistics().dropped, run.statistics().running) == (1, 0)
    assert sum(event.startswith("release") for event in tool.events) == 3
    assert engine.statistics().running == 0


async def test_the_runs_time_limit_ends_what_hangs(make_loop: MakeLoop) -> None:
    loop, engine, tool = make_loop(["#### 6"], delay_s=60.0)
    sink: Sink = []
    run = runner(loop, sink, time_limit_s=0.2)
    await run.run([TASK] * 9)
    assert sink == []
    assert (run.statistics().planned, run.statistics().dropped, run.statistics().running) == (9, 4, 0)
    assert (engine.statistics().running, engine.statistics().aborted) == (0, 4)
    assert sum(event.startswith("release") for event in tool.events) == 4
