"""The example that writes a dump as the OpenHands SDK's events: their order and tokens, and that the SDK reads them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from examples.openhands_events import events_of, main
from rollout.dump import DumpWriter, record_of
from rollout.engines import SamplingParams
from rollout.loop import AgentLoop, Limits, Task, TrajectoryResult
from rollout.metrics import trajectory_metrics
from rollout.testing import ScriptedEngine, ScriptedTool
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox
from tests.interop.results import result as bare
from tests.interop.results import sampled, tool
from tests.rollout.openhands_sdk import openhands_env

READER = Path(__file__).with_name("openhands_events.py")
CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "six"}}\n</tool_call>'
BROKEN = "<tool_call>\n{'name'}\n</tool_call>"
UNKNOWN = '<tool_call>\n{"name": "none", "arguments": {}}\n</tool_call>'
TASK = Task("u", ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "What?"}), "6", "t", "here:1")
TURNS = (f"<think>\nWhy?\n</think>\n\nI call.\n{CALL}\n{BROKEN}\n{UNKNOWN}", "<think>\nSo.\n</think>\n\n#### 6")


def record(result: TrajectoryResult) -> dict[str, Any]:
    return record_of(result, TASK, step=3, model="m", decode=str)


@pytest.fixture
async def played(tokenizer: HubTokenizer, chat: ChatTemplate) -> TrajectoryResult:
    engine = ScriptedEngine(tokenizer, TURNS, vocab_size=49152, weight_version="w7")
    limits = Limits(None, None, None, None, None, None)
    loop = AgentLoop(engine, chat, Toolbox([ScriptedTool(lambda _: "6")]), limits, SamplingParams())
    return await loop.run(TASK, index=0, seed=1)


async def test_order_of_a_turn_with_calls(
    played: TrajectoryResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with DumpWriter(tmp_path, 3) as writer:
        writer.write(record(played))
    assert main([str(writer.path)]) == 0
    events = json.loads(capsys.readouterr().out)["messages"]
    assert [event["kind"].removesuffix("Event") for event in events] == [
        *("SystemPrompt", "Message"),
        *["Action"] * 3,
        *("Observation", "AgentError", "AgentError", "Token"),
        *("Message", "Token"),
    ]
    actions = events[2:5]
    assert [[text["text"] for text in action["thought"]] for action in actions] == [["I call."], [], []]
    assert [action["reasoning_content"] for action in actions] == ["Why?", None, None]
    assert [action["action"] for action in actions] == [{"text": "six", "kind": "EchoAction"}, None, None]
    assert [action["tool_call"]["arguments"] for action in actions] == ['{"text": "six"}', "{'name'}", "{}"]
    assert events[5]["action_id"] == actions[0]["id"]
    assert len({event["id"] for event in events}) == len(events)
    answer = events[-2]["llm_message"]
    assert (answer["content"][0]["text"], answer["reasoning_content"]) == ("#### 6", "So.")
    tokens = [event for event in events if event["kind"] == "TokenEvent"]
    assert [event["response_token_ids"][:-1] for event in tokens] != [[], []]
    assert (*tokens[1]["prompt_token_ids"], *tokens[1]["response_token_ids"]) == played.trajectory.ids
    assert main([str(tmp_path / "none.jsonl")]) == 1


def test_a_condensed_trajectory_has_the_tokens_of_all_its_parts() -> None:
    first = bare([1], sampled([2, 3]), tool([4])).trajectory
    messages = ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"})
    result = bare([1, 9], sampled([5]), turns=2, earlier=(first,), messages=messages)
    tokens = [event for event in events_of(record(result)) if event["kind"] == "TokenEvent"]
    found = [(event["prompt_token_ids"], event["response_token_ids"]) for event in tokens]
    assert found == [([1], [2, 3]), ([1, 9], [5])]
    figures = trajectory_metrics(result)
    assert (figures["total_prompt_tokens"], figures["total_response_tokens"]) == (3, 3)


def test_the_sdk_reads_every_event(played: TrajectoryResult, openhands_python: str) -> None:
    events = list(events_of(record(played)))
    done = subprocess.run(
        [openhands_python, str(READER)],
        input=json.dumps(events),
        env=openhands_env(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "final": "#### 6",
        "roles": ["system", "user", "assistant", "tool", "tool", "tool", "assistant"],
        "calls": [0, 0, 3, 0, 0, 0, 0],
        "actions": ["EchoAction", "NoneType", "NoneType"],
    }
