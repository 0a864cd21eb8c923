"""Samples with known answers, calls and turns."""

from __future__ import annotations

import json
from typing import Any

from rollout.loop import StopReason, ToolCallRecord
from rollout.rewards import Sample
from rollout.rewards.localization.finish import FINISH_TOOL
from rollout.tools import ToolOutcome

TRUTH = {
    "target": "[('a.py',[1,2]),('b.py',[3,1])]",
    "file_changes": [
        {
            "file": "a.py",
            "changes": {
                "added_entities": ["a.py:C.new"],
                "added_modules": None,
                "edited_entities": ["a.py:C.m", "a.py:C.n"],
                "edited_modules": ["a.py:C"],
            },
        },
        {"file": "b.py", "changes": {"edited_entities": ["b.py:f"], "edited_modules": ["b.py:f"]}},
    ],
}


def call(turn: int, name: str = "bash", outcome: ToolOutcome = ToolOutcome.OK, **arguments: Any) -> ToolCallRecord:
    raw = json.dumps({"name": name, "arguments": arguments})
    return ToolCallRecord(turn, name, arguments, raw, outcome, "answer")


def answered(text: str, *, turns: int = 1, row: Any = None) -> Sample:
    """`text` is the last turn; there are no calls."""
    return Sample(
        text=text,
        ground_truth="",
        row=TRUTH if row is None else row,
        messages=({"role": "user", "content": "?"}, {"role": "assistant", "content": text}),
        turns=turns,
        trajectory_id="t",
        stop_reason=StopReason.ANSWERED,
        tokens=100,
    )


def conducted(turns: int, calls: int) -> Sample:
    """`calls` spread over `turns`, as far as there are any; the answer is empty."""
    records = tuple(call(1 + n % max(1, turns), command=f"ls {n}") for n in range(calls))
    messages = [{"role": "user", "content": "?"}, *[{"role": "assistant", "content": ""}] * turns]
    return Sample(
        text="",
        ground_truth="",
        row=TRUTH,
        messages=tuple(messages),
        tool_calls=records,
        turns=turns,
        trajectory_id="t",
    )


def finished(*locations: Any, before: int = 0, after: str = "\n</tool_call>", **changes: Any) -> Sample:
    """Ends with the finish tool, after `before` turns with one call each."""
    end = call(before + 1, FINISH_TOOL, locations=list(locations))
    text = f"I have it.\n<tool_call>\n{end.raw}{after}"
    fields: dict[str, Any] = {
        "text": text,
        "ground_truth": "",
        "row": TRUTH,
        "messages": ({"role": "user", "content": "?"}, {"role": "assistant", "content": text}),
        "tool_calls": (*(call(n + 1, command=f"ls {n}") for n in range(before)), end),
        "turns": before + 1,
        "trajectory_id": "t",
        "stop_reason": StopReason.ANSWERED,
        "tokens": 100,
    }
    return Sample(**fields | changes)


def place(file: str, class_name: str | None = None, function_name: str | None = None) -> dict[str, Any]:
    return {"file": file, "class_name": class_name, "function_name": function_name}
