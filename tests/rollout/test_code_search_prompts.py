"""Prompts of code search: what they say in each dialect, what templates may use, and what is refused when."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import pytest

from fairbox.errors import ConfigError
from rollout.envs.code_search.prompts import PromptContext, Prompts
from rollout.rewards.localization.dialects import Dialect

ANSWERS = ("patch", "test_patch", "target", "file_changes", "FAIL_TO_PASS", "PASS_TO_PASS")
"""Columns that hold the answer."""
CONTEXT = PromptContext("/testbed", 6, 5, ["bash", "localization_finish"])
ROW = {"instance_id": "a__b-1", "problem_statement": " {{ x }} is broken\n", "patch": "the answer", "repo": "a/b"}


def system(dialect: Dialect, context: PromptContext = CONTEXT) -> str:
    return Prompts(dialect).render(ROW, context)[0]["content"]


@pytest.mark.parametrize("dialect", get_args(Dialect))
def test_each_dialect_says_how_to_answer_and_none_says_how_others_do(dialect: Dialect) -> None:
    marks = {
        "files": "<files>",
        "code_block": "function: parse",
        "finish": "localization_finish, once",
        "final_answer": "<final_answer>",
    }
    said = system(dialect)
    assert [other for other, mark in marks.items() if mark in said] == [dialect]


def test_prompt_says_the_limits_of_the_run() -> None:
    said = system("files")
    assert "up to 5 calls in one turn" in said
    assert "You have 6 turns" in said
    alone = dataclasses.replace(CONTEXT, max_parallel_calls=1, max_turns=None)
    said = system("files", alone)
    assert "Make one call in each turn." in said
    assert "turns, the one with your answer included" not in said


def test_statement_is_text_and_no_template_and_the_answer_is_in_no_prompt() -> None:
    messages = Prompts("finish").render(ROW, CONTEXT)
    assert [message["role"] for message in messages] == ["system", "user"]
    assert "<report>\n{{ x }} is broken\n</report>" in messages[1]["content"]
    assert "the answer" not in str(messages)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a\n{{ foo }}", ":2: foo is not a variable; there is: answer_format, instance, "),
        ("a\n\n{% if %}", ":3: Expected an expression"),
        ("{% set foo = 1 %}\n{{ foo + bar }}", ":2: bar is not a variable"),
    ],
)
def test_template_of_ones_own_is_checked_when_it_is_loaded(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "user.j2"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Prompts("files", user=path)
    assert f"{path}{problem}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *((f"a\n{{{{ instance.{column} }}}}", f"has no attribute '{column}'") for column in ANSWERS),
        ("a\n{{ instance.no_such_column }}", "has no attribute 'no_such_column'"),
        ("a\n{% include 'other.j2' %}", "no loader"),
        ("a\n{{ instance.repo.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_nothing_undefined_or_hidden_becomes_text(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "user.j2"
    path.write_text(text)
    row = {**ROW, **dict.fromkeys(ANSWERS, "the answer")}
    with pytest.raises(ConfigError) as caught:
        Prompts("files", user=path).render(row, CONTEXT)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert problem in str(caught.value)


def test_template_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.j2: can't be read"):
        Prompts("files", system=tmp_path / "gone.j2")


def test_own_templates_may_use_every_variable(tmp_path: Path) -> None:
    path = tmp_path / "system.j2"
    path.write_text("{{ instance.repo }} {{ working_dir }} {{ max_turns }} {{ max_parallel_calls }} {{ tools[0] }}\n")
    messages = Prompts("code_block", system=path).render(ROW, CONTEXT)
    assert messages[0]["content"] == "a/b /testbed 6 5 bash"
