"""The event stream: its order, its tokens, and that it comes out of a dump as it comes out of the trajectory."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import FairboxError
from rollout.cli import main
from rollout.dump import DumpError, DumpWriter, read_dump, record_of
from rollout.engines import FinishReason, SamplingParams
from rollout.events import (
    ActionEvent,
    AgentErrorEvent,
    EventSource,
    MessageEvent,
    ObservationEvent,
    SystemPromptEvent,
    TokenEvent,
    event_json,
    trajectory_events,
)
from rollout.loop import AgentLoop, Limits, Task, TrajectoryResult
from rollout.metrics import trajectory_metrics
from rollout.testing import LOGPROB, ScriptedEngine, ScriptedTool
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import InfraError, Toolbox
from rollout.undump import result_of
from tests.interop.results import result as bare
from tests.interop.results import sampled, tool

CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "six"}}\n</tool_call>'
BROKEN = "<tool_call>\n{'name'}\n</tool_call>"
UNKNOWN = '<tool_call>\n{"name": "none", "arguments": {}}\n</tool_call>'
TASK = Task("u", ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "What?"}), "6", "t", "here:1")
TURNS = (f"<think>\nWhy?\n</think>\n\nI call.\n{CALL}\n{BROKEN}\n{UNKNOWN}", "<think>\nSo.\n</think>\n\n#### 6")


@pytest.fixture
def tools() -> ScriptedTool:
    return ScriptedTool(lambda _: "6")


async def played(
    tokenizer: HubTokenizer,
    chat: ChatTemplate,
    tool: ScriptedTool,
    turns: Sequence[str] = TURNS,
    max_turns: int | None = None,
) -> TrajectoryResult:
    engine = ScriptedEngine(tokenizer, turns, vocab_size=49152, weight_version="w7")
    limits = Limits(None, None, max_turns, None, None, None)
    loop = AgentLoop(engine, chat, Toolbox([tool]), limits, SamplingParams())
    return await loop.run(TASK, index=0, seed=1)


async def test_order_of_a_turn_with_calls(tokenizer: HubTokenizer, chat: ChatTemplate, tools: ScriptedTool) -> None:
    result = await played(tokenizer, chat, tools)
    events = list(trajectory_events(result))
    assert [type(event) for event in events] == [
        SystemPromptEvent,
        MessageEvent,
        *[ActionEvent] * 3,
        ObservationEvent,
        *[AgentErrorEvent] * 2,
        TokenEvent,
        MessageEvent,
        TokenEvent,
    ]
    actions = [event for event in events if isinstance(event, ActionEvent)]
    assert [action.thought for action in actions] == ["I call.", "", ""]
    assert [action.reasoning_content for action in actions] == ["Why?", None, None]
    assert [action.arguments for action in actions] == [{"text": "six"}, None, None]
    assert [action.written for action in actions] == ['{"text": "six"}', "{'name'}", "{}"]
    assert len({action.llm_response_id for action in actions}) == 1
    observation = next(event for event in events if isinstance(event, ObservationEvent))
    assert (observation.action_id, observation.text, observation.is_error) == (actions[0].id, "6", False)
    answer = events[-2]
    assert isinstance(answer, MessageEvent)
    assert (answer.text, answer.reasoning_content, answer.source) == ("#### 6", "So.", EventSource.AGENT)


async def test_tokens_are_those_of_the_trajectory(
    tokenizer: HubTokenizer, chat: ChatTemplate, tools: ScriptedTool
) -> None:
    result = await played(tokenizer, chat, tools)
    tokens = [event for event in trajectory_events(result) if isinstance(event, TokenEvent)]
    assert tokens[0].prompt_token_ids == result.trajectory.prompt_ids
    for event, text in zip(tokens, TURNS, strict=True):
        assert event.response_token_ids == (*tokenizer.encode(text), chat.end_of_turn)
        assert event.logprobs == (LOGPROB,) * len(event.response_token_ids)
        assert (event.weight_versions, event.finish_reason) == (("w7",), FinishReason.STOP)
    whole = tokens[1].prompt_token_ids + tokens[1].response_token_ids
    assert whole == result.trajectory.ids


async def test_ids_and_times(tokenizer: HubTokenizer, chat: ChatTemplate, tools: ScriptedTool) -> None:
    result = await played(tokenizer, chat, tools)
    events = list(trajectory_events(result))
    assert events == list(trajectory_events(result))
    assert len({event.id for event in events}) == len(events)
    assert all(a.timestamp <= b.timestamp for a, b in itertools.pairwise(events))
    assert events[0].timestamp.startswith("20")
    other = dataclasses.replace(result, trajectory_id="other")
    assert not {event.id for event in events} & {event.id for event in trajectory_events(other)}


async def test_a_turn_whose_calls_were_not_answered_is_a_message(
    tokenizer: HubTokenizer, chat: ChatTemplate, tools: ScriptedTool
) -> None:
    result = await played(tokenizer, chat, tools, [CALL, CALL], max_turns=1)
    kinds = [type(event).__name__ for event in trajectory_events(result)]
    assert kinds == ["SystemPromptEvent", "MessageEvent", "MessageEvent", "TokenEvent"]


async def test_an_answer_that_the_service_lost(tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    result = await played(tokenizer, chat, ScriptedTool(lambda _: InfraError("the executor is gone")))
    errors = [event.error for event in trajectory_events(result) if isinstance(event, AgentErrorEvent)]
    assert errors == ["the answer is lost: the executor is gone"] * 3


def test_examples_of_the_prompt_are_not_the_model_s() -> None:
    shown = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "shown"})
    result = bare([1], sampled([2, 3]), messages=(*shown, *shown[:1], {"role": "assistant", "content": "said"}))
    messages = [event for event in trajectory_events(result) if isinstance(event, MessageEvent)]
    assert [(event.text, event.source.value) for event in messages] == [
        ("?", "user"),
        ("shown", "environment"),
        ("?", "user"),
        ("said", "agent"),
    ]


def test_finish_reasons_without_records_are_told_by_the_last_id() -> None:
    for stop_ids, reason in (((3,), FinishReason.STOP), ((9,), FinishReason.LENGTH)):
        result = bare([1], sampled([2, 3]), sampling=SamplingParams(stop_token_ids=stop_ids))
        (event,) = (event for event in trajectory_events(result) if isinstance(event, TokenEvent))
        assert event.finish_reason is reason
        assert event.timestamp == "1970-01-01T00:00:00+00:00"


def test_turn_without_ids_has_an_empty_token_event() -> None:
    events = list(trajectory_events(bare([1, 2], turns=1)))
    assert isinstance(events[-1], TokenEvent)
    assert (events[-1].prompt_token_ids, events[-1].response_token_ids) == ((1, 2), ())


def test_a_condensed_trajectory_has_the_tokens_of_all_its_parts() -> None:
    first = bare([1], sampled([2, 3]), tool([4])).trajectory
    result = bare(
        [1, 9],
        sampled([5]),
        turns=2,
        earlier=(first,),
        messages=({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}),
    )
    tokens = [event for event in trajectory_events(result) if isinstance(event, TokenEvent)]
    assert [(event.prompt_token_ids, event.response_token_ids) for event in tokens] == [((1,), (2, 3)), ((1, 9), (5,))]
    figures = trajectory_metrics(result)
    assert (figures["total_prompt_tokens"], figures["total_response_tokens"]) == (3, 3)
    record = record_of(result, TASK, step=1, model="m", decode=str)
    assert result_of(json.loads(json.dumps(record))).parts == result.parts


async def test_functions_that_read_the_dictionaries_count_the_same(
    tokenizer: HubTokenizer, chat: ChatTemplate, tools: ScriptedTool
) -> None:
    """The counts that the code search project takes from its dictionaries are those of our metrics."""
    result = await played(tokenizer, chat, tools)
    messages: list[dict[str, Any]] = [event_json(event) for event in trajectory_events(result)]
    tokens = [message for message in messages if message["kind"] == "TokenEvent"]
    actions = [message for message in messages if message["kind"] == "ActionEvent"]
    figures = trajectory_metrics(result)
    assert (len(tokens), len(actions)) == (figures["num_turns"], figures["num_tool_calls"]) == (2, 3)
    assert len(tokens[-1]["prompt_token_ids"]) == figures["total_prompt_tokens"]
    assert sum(len(message["response_token_ids"]) for message in tokens) == figures["total_response_tokens"]
    assert actions[0]["action"] == {"text": "six", "kind": "EchoAction"}
    assert json.loads(json.dumps(messages)) == messages
    strict = [event_json(event, strict=True) for event in trajectory_events(result)]
    assert "logprobs" not in strict[-1]
    assert len(tokens[0]["logprobs"]) == len(tokens[0]["response_token_ids"])


@pytest.fixture
async def dump(tmp_path: Path, tokenizer: HubTokenizer, chat: ChatTemplate, tools: ScriptedTool) -> Path:
    results = [await played(tokenizer, chat, tools, turns) for turns in (TURNS, TURNS[1:])]
    with DumpWriter(tmp_path, 3) as writer:
        for index, result in enumerate(results):
            kept = dataclasses.replace(result, index=index)
            writer.write(record_of(kept, TASK, step=3, model="m", decode=chat.decode_plain))
    return writer.path


async def test_a_dumped_trajectory_is_the_trajectory(dump: Path, chat: ChatTemplate) -> None:
    for record in read_dump(dump):
        again = record_of(result_of(record), TASK, step=3, model="m", decode=chat.decode_plain)
        assert json.loads(json.dumps(again)) == record
        assert len(record["turn_records"]) == record["turns"]
        assert record["metrics"]["num_turns"] == record["turns"]


async def test_a_record_that_is_wrong_is_named(dump: Path) -> None:
    record = next(read_dump(dump))
    for change, problem in (
        ({"cause": "NOBODY"}, "cause is 'NOBODY', must be one of"),
        ({"tool_calls": [{"turn": 1}]}, "tool_calls: .*missing"),
        ({"sampling": {"temperature": -1}}, "temperature"),
    ):
        with pytest.raises(FairboxError, match=problem):
            result_of(record | change)


async def test_command(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", f"dump={dump}"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [message["kind"] for message in second["messages"]] == [
        "SystemPromptEvent",
        "MessageEvent",
        "MessageEvent",
        "TokenEvent",
    ]
    assert (first["instance_id"], first["metrics_dict"]["num_tool_calls"]) == ("u", 3)
    out = tmp_path / "one.jsonl"
    assert main(["events", f"dump={dump}", "index=1", f"out={out}", "tokens=false"]) == 0
    (line,) = out.read_text().splitlines()
    assert json.loads(line)["messages"] == second["messages"][:-1]
    assert main(["events", f"dump={dump}", f"out={out}"]) == 1
    assert "can't be written: File exists" in capsys.readouterr().err
    assert main(["events", f"dump={dump}", "index=7"]) == 1
    assert "no trajectory of index 7" in capsys.readouterr().err


def test_dumps_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"input": "", "output": "", "gts": "", "score": 1, "step": 1}\n')
    with pytest.raises(DumpError, match="request_id is missing"):
        next(read_dump(tmp_path / "1.jsonl"))
