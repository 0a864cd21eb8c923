"""Our events, read by the models of the OpenHands SDK."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from rollout.events import event_json, trajectory_events
from rollout.loop import ToolCallRecord
from rollout.tools import ToolOutcome
from tests.interop.results import result, sampled, tool
from tests.rollout.openhands_sdk import openhands_env

READER = Path(__file__).with_name("openhands_events.py")


@pytest.mark.timeout(300)
def test_the_sdk_reads_every_event(openhands_python: str) -> None:
    raw = '{"name": "echo", "arguments": {"text": "six"}}'
    turn = f"<think>\nWhy?\n</think>\n\nI call.\n<tool_call>\n{raw}\n</tool_call><tool_call>x</tool_call>"
    played = result(
        [1, 2],
        sampled([3, 4]),
        tool([5]),
        sampled([6]),
        messages=(
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What?"},
            {"role": "assistant", "content": turn},
            {"role": "tool", "content": "6"},
            {"role": "tool", "content": "Error."},
            {"role": "assistant", "content": "#### 6"},
        ),
        tool_calls=(
            ToolCallRecord(1, "echo", {"text": "six"}, raw, ToolOutcome.OK, "6"),
            ToolCallRecord(1, "", None, "x", ToolOutcome.MALFORMED, "Error."),
        ),
    )
    events = [event_json(event, strict=True) for event in trajectory_events(played)]
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
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {
        "final": "#### 6",
        "roles": ["system", "user", "assistant", "tool", "tool", "assistant"],
        "calls": [0, 0, 2, 0, 0, 0],
        "actions": ["EchoAction", "NoneType"],
    }
