"""Our events, read by the models of the OpenHands SDK.

It needs Python 3.12 and packages of its own, so it runs in an interpreter that has them: this one, or the one that
FAIRBOX_OPENHANDS_PYTHON names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollout.events import event_json, trajectory_events
from rollout.loop import ToolCallRecord
from rollout.tools import ToolOutcome
from tests.interop.results import result, sampled, tool

READER = Path(__file__).with_name("openhands_events.py")
VARIABLES = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENHANDS_SUPPRESS_BANNER": "1", "PYTHONPATH": ""}


@pytest.fixture
def python() -> str:
    """An interpreter that has the SDK."""
    if named := os.environ.get("FAIRBOX_OPENHANDS_PYTHON"):
        return named
    if importlib.util.find_spec("openhands") is None:
        pytest.skip("openhands-sdk is not here: set FAIRBOX_OPENHANDS_PYTHON to a Python 3.12 that has it")
    return sys.executable


@pytest.mark.timeout(300)
def test_the_sdk_reads_every_event(python: str) -> None:
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
        [python, str(READER)],
        input=json.dumps(events),
        env=os.environ | VARIABLES,
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
