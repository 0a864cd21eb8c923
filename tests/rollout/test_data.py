"""Readers of problems: the formats, and a name for every bad row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from rollout.data import DataError, read_rows
from rollout.rewards import parse_number


def test_built_in_problems_are_complete() -> None:
    rows = read_rows(None)
    assert len(rows) == 8
    assert all(row.data_source == "fairbox/problems" and parse_number(row.ground_truth) is not None for row in rows)


def test_rows_beyond_the_limit_are_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "q", "answer": "a #### 1"}\n\n{"question": "r", "answer": "#### 1,000"}\nbroken\n')
    rows = read_rows(path, 2)
    assert [(row.question, row.ground_truth, row.where) for row in rows] == [
        ("q", "1", f"{path}:1"),
        ("r", "1,000", f"{path}:3"),
    ]
    with pytest.raises(DataError, match=r"rows\.jsonl:4: is not JSON"):
        read_rows(path, 3)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nope", "is not JSON"),
        ("[1]", "must be an object with question and answer"),
        ('{"answer": "#### 1"}', "question must be a text that is not empty, but is 'None'"),
        ('{"question": "  ", "answer": "#### 1"}', "question must be a text"),
        ('{"question": 3, "answer": "#### 1"}', "question must be a text that is not empty, but is '3'"),
        ('{"question": "q"}', "answer must be a text"),
        ('{"question": "q", "answer": "18"}', "answer must have a number after ####, but ends with '18'"),
        ('{"question": "q", "answer": "#### x"}', "answer must have a number after ####"),
        ('{"question": "\\ud800", "answer": "#### 1"}', "question holds half a surrogate pair"),
        (json.dumps({"question": "q" * 20_000, "answer": "#### 1"}), "question has 20000 characters, at most 16384"),
        ('{"prompt": [], "reward_model": {"ground_truth": "1"}}', "needs extra_info.question, or a user message"),
        ('{"prompt": [{"role": "user", "content": "q"}]}', "reward_model.ground_truth must be a number, but is ''"),
    ],
)
def test_bad_row_is_named_with_file_and_line(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"question": "q", "answer": "#### 1"}}\n{line}\n')
    with pytest.raises(DataError) as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", b""), ("a.jsonl", b""), ("a.jsonl", b"\xff\xfe\n"), ("a.parquet", b"no")]
)
def test_file_that_holds_no_problems_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"^{tmp_path / name}: "):
        read_rows(tmp_path / name)


def test_absent_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.jsonl: No such file"):
        read_rows(tmp_path / "absent.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match=r"folder\.jsonl: Is a directory"):
        read_rows(tmp_path / "folder.jsonl")


VERL: dict[str, Any] = {
    "data_source": "openai/gsm8k",
    "prompt": [
        {"role": "system", "content": "You are a math expert."},
        {"role": "user", "content": "q Let's think step by step and output the final answer after `####`."},
    ],
    "reward_model": {"style": "rule", "ground_truth": "72"},
    "extra_info": {"split": "test", "index": 0, "answer": "#### 72", "question": "q"},
}


def test_parquet_of_gsm8k_and_of_verl_is_read(tmp_path: Path) -> None:
    plain, verl = tmp_path / "plain.parquet", tmp_path / "verl.parquet"
    rows = [{"question": f"q{n}", "answer": f"#### {n}"} for n in range(600)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), plain)
    read = read_rows(plain)
    assert [(row.question, row.ground_truth) for row in read] == [(f"q{n}", str(n)) for n in range(600)]
    assert read[-1].where == f"{plain}: row 600"
    bare = {key: value for key, value in VERL.items() if key != "extra_info"}
    parquet.write_table(pyarrow.Table.from_pylist([VERL, bare]), verl)
    first, second = read_rows(verl)
    assert (first.question, first.ground_truth, first.data_source) == ("q", "72", "openai/gsm8k")
    assert second.question.startswith("q Let's think")


def test_bad_parquet_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([{"question": "q", "answer": "no"}]), path)
    with pytest.raises(DataError, match=r"a\.parquet: row 1: answer must have a number after ####"):
        read_rows(path)
