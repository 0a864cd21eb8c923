"""GSM8K: answers, rewards, prompts."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service import Cause
from rollout.data import read_rows
from rollout.envs import EnvironmentSetup, Gsm8kConfig, Gsm8kEnvironment
from rollout.envs.gsm8k_prompts import EXAMPLES
from rollout.rewards import AnswerMethod, NotScored, extract_answer, gsm8k_reward, parse_number
from rollout.tokens import ChatTemplate
from rollout.tools import ToolCall, parse_tool_calls


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("####18", "18"),
        ("#### 220000.0", "220000"),
        ("#### \u22127", "-7"),
        ("#### $ 18 dollars", "18"),
        ("#### 18 eggs", "18"),
        ("#### 25%", "25"),
        ("#### 18.", "18"),
        ("#### .5", "0.5"),
        ("#### **18**", "18"),
        ("#### \\(18\\)", "18"),
        ("#### x = 18", "18"),
        ("#### 3 + 4 = 7", "3"),
        ("I think\n#### 3\nNo, wait:\n#### 4\n", "4"),
        ("#### 5 and then #### 6", "6"),
        ("##### 9", "9"),
    ],
)
def test_number_after_the_last_mark_is_the_answer(text: str, value: str) -> None:
    assert extract_answer(text) == Decimal(value)


@pytest.mark.parametrize(
    "text",
    [
        "18",
        "",
        "####",
        "#### none",
        "####\n18",
        "### 18",
        "#### 1/2",
        "#### a1",
        "#### 1,2",
        "#### 1.2.3",
        "#### 18\n####",
    ],
)
def test_text_without_a_number_after_the_last_mark_has_no_answer(text: str) -> None:
    assert extract_answer(text) is None


@pytest.mark.parametrize(
    ("text", "truth", "correct", "answered"),
    [
        ("#### 220000.0", "220000", 1, 1),
        ("#### 1,000", "1000", 1, 1),
        ("#### 1000", "1,000", 1, 1),
        ("#### 17", "18", 0, 1),
        ("#### -18", "18", 0, 1),
        ("18", "18", 0, 0),
        ("", "18", 0, 0),
        ("#### 0.1", "0.10", 1, 1),
        ("#### 0.30000000000000004", "0.3", 0, 1),
    ],
)
def test_reward_compares_numbers_and_shows_its_parts(text: str, truth: str, correct: int, answered: int) -> None:
    reward = gsm8k_reward(text, truth)
    assert reward.value == correct
    assert reward.parts == {"correct": correct, "answered": answered}


@given(st.decimals(-(10**9), 10**9, places=2), st.text(st.characters(exclude_characters="#"), max_size=30))
def test_every_way_to_write_a_number_is_that_number(value: Decimal, before: str) -> None:
    for written in (f"{value:f}", f"{value:,f}", f"{'-' if value < 0 else ''}${abs(value):,}"):
        assert parse_number(written) == value
        assert extract_answer(f"{before}\n#### {written}") == value


@given(st.text(max_size=60))
def test_no_text_breaks_the_reward(text: str) -> None:
    assert gsm8k_reward(text, "1").value in (0.0, 1.0)


@pytest.mark.parametrize("split", ["test", "train"])
def test_every_row_rewards_its_own_answer(gsm8k_test: Path, split: str) -> None:
    path = gsm8k_test.with_name(f"{split}.jsonl")
    if not path.exists():
        pytest.skip(f"GSM8K's {split} rows are not here")
    rows = read_rows(path)
    assert len(rows) == 1319 if split == "test" else rows
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row, line in zip(rows, lines, strict=True):
        for method in AnswerMethod:
            assert gsm8k_reward(line["answer"], row.ground_truth, method=method).value == 1.0
            wrong = line["answer"] + (" 0.123" if method is AnswerMethod.FLEXIBLE else "1")
            assert gsm8k_reward(wrong, row.ground_truth, method=method).value == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("It is 18", "18"),
        ("first 3, then 1,234.50 dollars.", "1234.5"),
        ("#### 7 and not 8", "8"),
        ("18 or 1/2", "18"),
        ("about -5%", "-5"),
        ("nothing", None),
        ("", None),
        ("....,,,,", None),
        ("7" + " and so on" * 100, "7"),
    ],
)
def test_the_flexible_answer_is_the_last_number(text: str, value: str | None) -> None:
    assert extract_answer(text, AnswerMethod.FLEXIBLE) == (None if value is None else Decimal(value))


def test_a_wrong_answer_in_the_right_form_may_be_worth_something() -> None:
    assert gsm8k_reward("#### 3", "18", format_score=0.1).value == 0.1
    assert gsm8k_reward("18", "18", format_score=0.1).value == 0.0
    assert gsm8k_reward("#### 18", "18", format_score=0.1).value == 1.0
    assert gsm8k_reward("about 3", "18", method=AnswerMethod.FLEXIBLE, format_score=0.1).value == 0.1


def test_a_ground_truth_that_is_no_number_is_the_tasks_fault() -> None:
    with pytest.raises(NotScored, match="the ground truth is 'many', must be a number") as caught:
        gsm8k_reward("#### 3", "many")
    assert caught.value.cause is Cause.TASK


def test_prompt_shows_two_worked_examples_and_ends_with_the_question(chat: ChatTemplate) -> None:
    (task, *others) = Gsm8kEnvironment(Gsm8kConfig(), EnvironmentSetup()).tasks()
    assert [message["role"] for message in task.messages] == [
        "system",
        *("user", "assistant", "tool", "assistant") * 2,
        "user",
    ]
    calls = [call for message in task.messages for call in parse_tool_calls(message["content"])]
    assert [call.arguments["code"] for call in calls if isinstance(call, ToolCall)] == [e.code for e in EXAMPLES]
    assert "A ticket costs $9" in task.messages[-1]["content"]
    assert len({each.uid for each in [task, *others]}) == 8
    assert chat.prompt_text(task.messages).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("example", EXAMPLES)
def test_worked_examples_are_right(example: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(example, type(EXAMPLES[0]))
    exec(compile(example.code, "example", "exec"), {})  # our own code
    assert capsys.readouterr().out.rstrip("\n") == example.output
    assert parse_number(example.output) == parse_number(example.answer)
