"""Rows of code search data, and the tool that takes the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.data.records import DataError
from rollout.envs.code_search import LocalizationFinish, read_search_rows
from rollout.tools import Toolbox, ToolCall, ToolOutcome, ToolResponse

ROW = {"instance_id": "a", "problem_statement": "It breaks.", "repo": "o/n", "base_commit": None}


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_keep_all_columns_and_their_place(tmp_path: Path) -> None:
    changes = [{"file": "a.py", "changes": {"edited_modules": None}}, {"file": "b.py", "changes": {}}]
    path = written(tmp_path / "rows.jsonl", ROW | {"patch": "p", "file_changes": changes}, ROW | {"instance_id": "b"})
    first, second = read_search_rows(path)
    assert (first.columns["patch"], first.where, first.truth) == ("p", f"{path}:1", '["a.py", "b.py"]')
    assert (second.instance_id, second.where, second.truth) == ("b", f"{path}:2", "")
    assert [row.instance_id for row in read_search_rows(path, 1)] == ["a"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("text", "must be an object"),
        (ROW | {"instance_id": 3}, "instance_id must be a text that is not empty, but is '3'"),
        (ROW | {"problem_statement": " \n"}, "problem_statement must be a text"),
        (ROW | {"problem_statement": "\ud800"}, "half a surrogate pair"),
        (ROW | {"problem_statement": "x" * 200_001}, "at most 200000"),
    ],
)
def test_bad_row_is_named(tmp_path: Path, row: Any, problem: str) -> None:
    path = written(tmp_path / "rows.jsonl", ROW | {"instance_id": "other"}, row)
    with pytest.raises(DataError) as caught:
        read_search_rows(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert problem in str(caught.value)


def test_two_rows_of_one_name_would_be_one_group_and_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", ROW, ROW)
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: has the instance_id 'a', as {path}:1 has"):
        read_search_rows(path)


async def said(**arguments: Any) -> ToolResponse:
    box = Toolbox([LocalizationFinish()])
    (response,) = await box.answer("t", [ToolCall("localization_finish", arguments, "")], run=0, time_limit_s=None)
    return response


@pytest.mark.parametrize(
    "locations",
    [
        [],
        [{"file": "a.py"}],
        [{"file": "a.py", "class_name": "C", "function_name": None}, {"file": "b.py", "function_name": "f", "line": 3}],
    ],
)
async def test_answer_in_order_is_final(locations: list[Any]) -> None:
    response = await said(locations=locations)
    assert (response.outcome, response.final) == (ToolOutcome.OK, True)


@pytest.mark.parametrize(
    ("locations", "problem"),
    [
        ("a.py", '"locations" must be array'),
        ([{"file": "a.py"}, "b.py"], '"locations[1]" must be object'),
        ([{"file": 3}], '"locations[0].file" must be string'),
        ([{"class_name": "C"}], '"locations[0].file" is missing'),
        ([{"file": "a.py", "function_name": ["f"]}], '"locations[0].function_name" must be string'),
    ],
)
async def test_answer_out_of_order_says_what_is_wrong_and_ends_nothing(locations: Any, problem: str) -> None:
    response = await said(locations=locations)
    assert (response.outcome, response.final) == (ToolOutcome.BAD_ARGUMENTS, False)
    assert problem in response.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.lists(json_values | st.fixed_dictionaries({"file": json_values, "class_name": json_values}), max_size=5))
def test_whatever_the_places_are_they_are_taken_or_answered(locations: list[Any]) -> None:
    problem = LocalizationFinish.default_schema.problem({"locations": locations})
    taken = all(isinstance(each, dict) and isinstance(each.get("file"), str) for each in locations)
    assert problem is not None or taken
    assert problem is None or locations
