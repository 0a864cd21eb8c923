"""The finish tool: which calls are an answer, and what a last turn must look like."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from rollout.loop import StopReason
from rollout.rewards import Sample
from rollout.rewards.localization import (
    file_localization_reward,
    multilevel_localization_f1_reward,
    result_tool_check,
    result_tool_f1,
    result_tool_precision,
    result_tool_recall,
    tool_call_count_per_turn,
    turns_with_tool_calls,
)
from rollout.rewards.localization.answer import Location
from rollout.rewards.localization.finish import FINISH_TOOL, finished_locations, read_locations
from rollout.tools import ToolOutcome
from tests.rollout.rewards.localization.samples import TRUTH, answered, call, conducted, finished, place

RIGHT = (place("a.py", "C", "m"), place("a.py", "C", "n"), place("b.py", None, "f"))


def with_calls(sample: Sample, *calls: Any) -> Sample:
    return dataclasses.replace(sample, tool_calls=(*calls, *sample.tool_calls))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"locations": [{"file": "a", "extra": 1}]}, (Location("a"),)),
        ({"locations": []}, ()),
        ({"locations": [{"file": "a", "class_name": "", "function_name": None}]}, (Location("a"),)),
        ({"locations": [{"class_name": "C"}]}, None),
        ({"locations": [{"file": 1}]}, None),
        ({"locations": [{"file": "a", "function_name": 1}]}, None),
        ({"locations": ["a"]}, None),
        ({"locations": {"file": "a"}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_arguments(arguments: Any, expected: Any) -> None:
    assert read_locations(arguments) == expected


def test_a_single_call_that_ends_the_last_turn_is_the_answer() -> None:
    assert multilevel_localization_f1_reward(finished(*RIGHT, before=3)).value == 3
    refused = call(1, FINISH_TOOL, ToolOutcome.BAD_ARGUMENTS, locations="a.py")
    assert multilevel_localization_f1_reward(with_calls(finished(*RIGHT, before=1), refused)).value == 3


GATED = {
    "text follows": finished(*RIGHT, after="\n</tool_call>\nDone."),
    "closed twice": finished(*RIGHT, after="</tool_call></tool_call>"),
    "opened again": finished(*RIGHT, after="</tool_call><tool_call>"),
    "called twice": with_calls(finished(*RIGHT, before=1), call(1, FINISH_TOOL, locations=[])),
    "with another": with_calls(finished(*RIGHT), call(1, command="ls")),
    "with a broken one": with_calls(finished(*RIGHT), call(1, "", ToolOutcome.MALFORMED)),
    "in an earlier turn": finished(*RIGHT, turns=2),
    "cut off": finished(*RIGHT, stop_reason=StopReason.RESPONSE_LENGTH),
    "never": answered("a.py"),
}


@pytest.mark.parametrize("sample", GATED.values(), ids=GATED)
def test_gate(sample: Sample) -> None:
    assert finished_locations(sample) is None
    gated = multilevel_localization_f1_reward(sample)
    assert (gated.value, gated.parts["answered"]) == (0, 0)


def test_gate_can_be_opened() -> None:
    for name in ("text follows", "with another", "in an earlier turn", "cut off"):
        assert multilevel_localization_f1_reward(GATED[name], check_last_step=False).value == 3
    for name in ("called twice", "never"):
        assert multilevel_localization_f1_reward(GATED[name], check_last_step=False).value == 0


@pytest.mark.parametrize("after", ["", "</tool_call>", "\n</function>\n</tool_call>\n", "<|tool_call_end|>"])
def test_marks_of_any_format_may_close_the_call(after: str) -> None:
    assert finished_locations(finished(*RIGHT, after=after))


def test_marks_inside_the_arguments_are_text() -> None:
    odd = finished(place("a.py", "C", "m"), place("</tool_call><tool_call>.py"))
    assert finished_locations(odd)


def test_a_text_alone_is_searched_for_the_call() -> None:
    text = f"<tool_call>\n{json.dumps({'name': FINISH_TOOL, 'arguments': {'locations': RIGHT}})}\n</tool_call>"
    alone = Sample(text=text, ground_truth="", row=TRUTH)
    assert multilevel_localization_f1_reward(alone).value == 3
    assert multilevel_localization_f1_reward(dataclasses.replace(alone, text=text + " Done.")).value == 0
    assert multilevel_localization_f1_reward(dataclasses.replace(alone, text="<tool_call>{</tool_call>")).value == 0


def test_blank_file_and_dot_slash() -> None:
    assert multilevel_localization_f1_reward(finished(*RIGHT, place("  "))).parts["file_reward"] == 0
    dotted = finished(place("./a.py", "C", "m"), place("./a.py", "C", "n"), place("b.py", None, "f"))
    assert multilevel_localization_f1_reward(dotted, normalise=True).value == 3


@pytest.mark.parametrize(
    ("text", "row", "truth", "expected"),
    [
        ("<files>./a.py\nb.py</files>", TRUTH, "", 1),
        ("<files>a.py</files>", TRUTH, "", 2 / 3),
        ("<files></files>", TRUTH, "", 0),
        ("<files></files>", {"target": "[]"}, "", 1),
        ("nothing", {"target": "[]"}, "", 0),
        ("<files>a.py</files>", {}, '{"./a.py": {"old_start": 1}}', 1),
    ],
)
def test_files_of_the_verifiers_environment(text: str, row: Any, truth: str, expected: float) -> None:
    sample = dataclasses.replace(answered(text, row=row), ground_truth=truth)
    assert file_localization_reward(sample).value == pytest.approx(expected)


def test_calls_of_the_verifiers_environment() -> None:
    assert (turns_with_tool_calls(conducted(3, 0)), tool_call_count_per_turn(conducted(3, 0))) == (0, 0)
    assert (turns_with_tool_calls(conducted(3, 6)), tool_call_count_per_turn(conducted(3, 6))) == (1, 0.4)
    assert tool_call_count_per_turn(conducted(1, 9)) == 1
    broken = with_calls(answered("x", turns=2), call(1, "", ToolOutcome.MALFORMED))
    assert (turns_with_tool_calls(broken), turns_with_tool_calls(broken, ran_only=True)) == (1, 0)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ((call(1, "result", file_paths=["a.py", "z.py"]),), (1, 0.5, 0.5, 0.5)),
        ((call(1, "result", file_paths=["a.py"]), call(2, "result", file_paths=["b.py"])), (1, 1, 0.5, 2 / 3)),
        ((call(1, "result", ToolOutcome.BAD_ARGUMENTS), call(2, "result", file_paths=["a.py"])), (0, 0, 0, 0)),
        ((call(1, "result", file_paths=[]),), (1, 0, 0, 0)),
        ((), (0, 0, 0, 0)),
    ],
)
def test_result_tool(calls: Any, expected: tuple[float, ...]) -> None:
    sample = dataclasses.replace(answered("", turns=3), tool_calls=calls)
    functions = (result_tool_check, result_tool_precision, result_tool_recall, result_tool_f1)
    assert [function(sample) for function in functions] == pytest.approx(list(expected))
