"""The formulas against values that the functions that they come from gave for the same input."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from executor_service import Cause
from rollout.loop import StopReason
from rollout.rewards import NotScored, Reward, Sample
from rollout.rewards.localization import (
    cosine_reward,
    empty_answer_penalty,
    file_localization_f1_reward,
    format_reward,
    line_localization_reward,
    main_cosine_reward,
    multilevel_localization_f1_reward,
    multiturn_reward,
    scaled_f1_reward,
    tool_use_reward,
    turn_efficiency,
)
from rollout.rewards.localization.answer import LineSpan
from rollout.rewards.localization.scores import Overlap, line_iou
from tests.rollout.rewards.localization.samples import TRUTH, answered, conducted, finished, place

ALL = "a.py\nclass: C\nfunction: m\nfunction: n\n\nb.py\nfunction: f"
TWO_THIRDS = 2 / 3
FOUND: list[tuple[str, tuple[Any, ...], tuple[float, float, float, float]]] = [
    (ALL, (place("a.py", "C", "m"), place("a.py", "C", "n"), place("b.py", None, "f")), (1, 1, 1, 3)),
    ("a.py\nclass: C\nfunction: m", (place("a.py", "C", "m"),), (TWO_THIRDS, TWO_THIRDS, 0.5, 1.833333)),
    (
        "a.py\nfunction: C.m\n\nb.py\nfunction: f\nc.py\nfunction: g\nd.py\nmethod: h",
        (place("a.py", "C", "m"), place("b.py", "", "f"), place("c.py", None, "g"), place("d.py", None, "h")),
        (TWO_THIRDS, TWO_THIRDS, 0.571429, 1.904762),
    ),
    ("./a.py\nclass: C\nfunction: m", (place("./a.py", "C", "m"),), (0, 0, 0, 0)),
    ("", (), (0, 0, 0, 0)),
]


def close(value: Any) -> Any:
    return pytest.approx(value, abs=5e-7)


def levels(reward: Reward) -> tuple[float, ...]:
    return (*(reward.parts[f"{level}_reward"] for level in ("file", "module", "entity")), reward.value)


@pytest.mark.parametrize(("text", "locations", "expected"), FOUND)
def test_found(text: str, locations: tuple[Any, ...], expected: tuple[float, ...]) -> None:
    assert levels(multilevel_localization_f1_reward(answered(text), generation="main")) == close(expected)
    assert levels(multilevel_localization_f1_reward(answered(f"```\n{text}\n```"), generation="main")) == close(
        expected
    )
    assert levels(multilevel_localization_f1_reward(finished(*locations))) == close(expected)
    in_text = file_localization_f1_reward(answered(text))
    assert in_text.value == in_text.parts["file_reward"] == close(expected[0])
    assert file_localization_f1_reward(answered(text), generation="main").parts["file_level_score"] == close(
        expected[0]
    )
    assert file_localization_f1_reward(finished(*locations), dialect="finish").value == close(expected[0])


@pytest.mark.parametrize(
    ("sample", "generation", "expected"),
    [
        (answered("a.py\nfunction: C.__init__"), "main", (TWO_THIRDS, TWO_THIRDS, 0, 1.333333)),
        (answered("a.py\nb.py"), "main", (0, 0, 0, 0)),
        (finished(place("a.py", "C"), place("b.py")), "codescout", (1, TWO_THIRDS, 0, 1.666667)),
        (finished(place("a.py", "C", "m"), place(" ")), "codescout", (0, 0, 0, 0)),
    ],
)
def test_found_by_one_generation(sample: Sample, generation: Any, expected: tuple[float, ...]) -> None:
    assert levels(multilevel_localization_f1_reward(sample, generation=generation)) == close(expected)


def test_init_can_be_found_by_the_second_generation_alone() -> None:
    row = {"file_changes": [{"file": "a.py", "changes": {"edited_entities": ["a.py:C.__init__"]}}]}
    sample = answered("a.py\nclass: C\nfunction: __init__", row=row)
    main = multilevel_localization_f1_reward(sample, generation="main")
    codescout = multilevel_localization_f1_reward(sample, dialect="code_block")
    assert (main.parts["entity_reward"], codescout.parts["entity_reward"]) == (0, 1)


def test_weights_are_not_normalised() -> None:
    weighted = multilevel_localization_f1_reward(
        answered(FOUND[1][0]), generation="main", file_level_weight=1, module_level_weight=0.5, entity_level_weight=0.25
    )
    assert weighted.value == close(1.125)
    assert file_localization_f1_reward(answered(FOUND[1][0]), file_level_weight=4).value == close(4 * TWO_THIRDS)


@pytest.mark.parametrize(("precision", "recall", "expected"), [(0.5, 1, 0.555556), (1, 0.5, 0.833333), (0, 0, 0)])
def test_beta_below_one_favours_precision(precision: float, recall: float, expected: float) -> None:
    assert Overlap(precision, recall).f(0.5) == close(expected)


CONDUCT = [
    # turns, calls, tool use main | codescout, efficiency, multiturn main | codescout,
    # cosine main right | wrong, cosine codescout right | wrong, scaled F1 of 2/3
    (0, 0, 0, 0, 0, 0, 0, 10, -10, 5.809699, -9.809699, -5),
    (1, 1, 1, 0.2, 0, 0, 1, 9.400184, -9.400184, 6.191665, -9.687340, 0.133333),
    (2, 2, 1, 0.4, 1, 1, 1, 9.045085, -9.045085, 7.191665, -9.332241, 0.266667),
    (4, 9, 2.25, 0.6, 1, 1, 1, 6.163629, -6.163629, 7.074743, -7.426172, 0.4),
    (4, 15, 3.75, 1, 1, 1, 1, 4.004776, -4.004776, 8.456709, -5.956709, 0.666667),
    (5, 20, 4, 1, 1, 1, 1, 2.977458, -2.977458, 7.5, -5, 0.666667),
    (6, 6, 1, 0.24, 0.9, 1, 0, 6.25, -6.25, 3.085354, -6.367733, 0.16),
    (10, 10, 1, 0.222222, 0.5, 1, 0, 4.522542, -4.522542, 1.467911, -4.849232, 0.148148),
    (16, 30, 1.875, 0.4, 0, 1, 0, -6.543291, -13.456709, 2.381966, -4.522542, 0.266667),
    (3, 24, 8, 1, 1, 1, 1, -6.030537, -13.969463, 4.267767, -4.267767, 0.666667),
]


@pytest.mark.parametrize("line", CONDUCT)
def test_conduct(line: tuple[float, ...]) -> None:
    turns, calls = int(line[0]), int(line[1])
    sample = conducted(turns, calls)
    found = {
        "tool main": tool_use_reward(sample, generation="main"),
        "tool": tool_use_reward(sample),
        "efficiency": turn_efficiency(sample),
        "multiturn main": multiturn_reward(sample, generation="main"),
        "multiturn": multiturn_reward(sample),
    }
    assert list(found.values()) == close(list(line[2:7])), found


@pytest.mark.parametrize("line", CONDUCT)
def test_cosines(line: tuple[float, ...]) -> None:
    right, wrong = with_answer(line, ALL), with_answer(line, "nothing")
    cosines = [
        main_cosine_reward(right).value,
        main_cosine_reward(wrong).value,
        cosine_reward(right, dialect="code_block").value,
        cosine_reward(wrong, dialect="code_block").value,
    ]
    assert cosines == close(list(line[7:11]))
    assert scaled_f1_reward(with_answer(line, FOUND[1][0])).value == close(line[11])


def with_answer(line: tuple[float, ...], text: str) -> Sample:
    """With the answer as the message of `finish`, so that the last turn may call tools too."""
    sample = conducted(int(line[0]), int(line[1]))
    first = dataclasses.replace(sample.tool_calls[0], name="finish", arguments={"message": text}) if line[1] else None
    if first is None:
        messages = ({"role": "assistant", "content": text},)
        return dataclasses.replace(sample, text=text, messages=messages)
    return dataclasses.replace(sample, tool_calls=(first, *sample.tool_calls[1:]))


def test_options_of_tool_use() -> None:
    assert tool_use_reward(conducted(2, 0), penalize=True) == -5
    assert tool_use_reward(conducted(4, 9), clamp=True) == 1
    assert tool_use_reward(conducted(2, 0), clamp=True) == 0
    assert tool_use_reward(conducted(4, 3), reduction="sum", max_tool_use=4) == 0.75


def test_multiturn_of_one_number_of_turns() -> None:
    exactly_four = [multiturn_reward(conducted(n, n), minimal_turns=4, maximal_turns=4) for n in (3, 4, 5)]
    assert exactly_four == [0, 1, 0]


def test_length_is_a_third_cosine() -> None:
    sample = dataclasses.replace(answered(ALL), tokens=8192)
    alone: dict[str, Any] = {"use_turn_reward": False, "use_tool_reward": False, "use_length_reward": True}
    assert cosine_reward(sample, dialect="code_block", **alone).value == close(2.5)
    longer = dataclasses.replace(sample, tokens=16385)
    assert cosine_reward(longer, dialect="code_block", **alone).value == 0
    with pytest.raises(NotScored, match="no tokens"):
        cosine_reward(dataclasses.replace(sample, tokens=None), dialect="code_block", use_length_reward=True)


@pytest.mark.parametrize(("text", "expected"), [("```a```", 1), (" \n```a```", 1), ("text ```a```", -5), ("", -5)])
def test_format(text: str, expected: float) -> None:
    assert format_reward(answered(text)) == expected
    assert format_reward(answered(text), penalize=False) == max(0, expected)


def test_empty_answer_costs_ten() -> None:
    assert empty_answer_penalty(answered("")).value == -10
    assert empty_answer_penalty(answered("<think>\na.py\n</think>\n\n")).value == -10
    assert empty_answer_penalty(answered("a")).value == 0
    cut_off = dataclasses.replace(answered("<tool_call>..."), stop_reason=StopReason.TURNS)
    assert empty_answer_penalty(cut_off).value == -10


def test_line_iou() -> None:
    assert line_iou([LineSpan("a.py", 1, 10)], [LineSpan("a.py", 6, 15)]) == close(1 / 3)
    assert line_iou([], []) == 1
    assert line_iou([LineSpan("a.py", 1, 10)], []) == 0
    twice = [LineSpan("a.py", 1, 10), LineSpan("a.py", 5, 10), LineSpan("b.py", 1, 10)]
    assert line_iou(twice, [LineSpan("a.py", 1, 10)]) == close(0.5)


def test_line_reward_reads_the_count_as_a_count() -> None:
    spoken = answered("<final_answer>\n./a.py:1-10 (why)\n</final_answer>", row={"target": [("a.py", [6, 10])]})
    assert line_localization_reward(spoken).value == close(1 / 3)
    measured = line_localization_reward(spoken, measure="f")
    assert measured.value == close(0.5)
    assert measured.parts == {"line_iou": close(1 / 3), "answered": 1, "line_precision": 0.5, "line_recall": 0.5}


def test_precision_and_recall_are_parts() -> None:
    parts = multilevel_localization_f1_reward(finished(place("a.py", "C", "m"), place("z.py"))).parts
    assert (parts["file_precision"], parts["file_recall"], parts["answered"]) == (0.5, 0.5, 1)
    assert (parts["entity_precision"], parts["entity_recall"]) == (1, close(1 / 3))


def test_a_row_without_truth_is_the_data_s_fault() -> None:
    row: Any
    for row, column in (
        ({}, "file_changes"),
        ({"file_changes": [{"changes": {}}]}, "file_changes"),
        ({"file_changes": "x("}, "file_changes"),
        ({"file_changes": [{"file": "a", "changes": {"edited_modules": [1]}}]}, "file_changes"),
    ):
        with pytest.raises(NotScored, match=column) as caught:
            multilevel_localization_f1_reward(answered(ALL, row=row), generation="main")
        assert caught.value.cause is Cause.TASK
    for row in ({}, {"target": [("a.py", [1])]}, {"target": 5}, {"target": "[("}, {"target": [("a.py", [-1, 2])]}):
        with pytest.raises(NotScored, match="target"):
            line_localization_reward(answered("<final_answer></final_answer>", row=row))
        with pytest.raises(NotScored, match="target"):
            file_localization_f1_reward(answered(ALL, row=row))


def test_truth_that_is_empty_gives_nothing() -> None:
    row = {"file_changes": [], "target": "[]"}
    assert multilevel_localization_f1_reward(answered("", row=row), generation="main").value == 0
    assert file_localization_f1_reward(answered(ALL, row=row)).value == 0


def test_target_may_be_a_copy_of_file_changes() -> None:
    row = {"target": TRUTH["file_changes"]}
    assert file_localization_f1_reward(answered(ALL, row=row)).value == 1
    assert file_localization_f1_reward(answered(ALL, row={"file_changes": TRUTH["file_changes"]})).value == 1


PATCH = (
    """--- a/a.py
+++ b/a.py
@@ -6,10 +6,11 @@
"""
    + " same\n" * 10
    + "+new\n"
)


def test_a_patch_is_the_truth_where_no_column_says_it() -> None:
    spoken = "<final_answer>a.py:1-10</final_answer>"
    for row, truth in (({"patch": PATCH}, 15), ({"patch": PATCH, "use_patch": True}, 16)):
        assert file_localization_f1_reward(answered("a.py\nfunction: f", row=row)).value == 1
        assert line_localization_reward(answered(spoken, row=row)).value == close(5 / truth)
    with pytest.raises(NotScored, match="patch can't be read"):
        line_localization_reward(answered(spoken, row={"patch": "--- a/a.py\n+++ b/a.py\n@@ -1,9 +1 @@\n"}))
