"""The index of a dump: rows wherever the bytes are cut, broken and unfinished lines, files that grow."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbox.errors import ConfigError
from rollout.dump import read_dump
from rollout.viewer.rows.index import DumpFolder, StepFile, read_bytes, read_row
from rollout.viewer.rows.summary import FIELDS, RowSummary, parse_line
from tests.rollout.viewer.conftest import verl_row

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["score", "turns", "tool_calls", "timings", "uid", "response_mask", "logprobs", "masked", "reward_parts", "x"]
)


def indexed(data: bytes, *cuts: int, **options: Any) -> StepFile:
    edges = [0, *sorted(cuts), len(data)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "1.jsonl"
        file = StepFile(path, **options)
        with path.open("wb") as written:
            for start, end in itertools.pairwise(edges):
                written.write(data[start:end])
                written.flush()
                whole(file)
        return file


def whole(file: StepFile) -> list[RowSummary]:
    while not file.advance():
        pass
    return list(file.rows)


@given(
    st.lists(st.dictionaries(NAMES, JSON, max_size=4), max_size=5), st.lists(st.integers(0, 300), max_size=5), st.data()
)
def test_any_object_is_a_row_wherever_the_bytes_are_cut(
    records: list[dict[str, Any]], cuts: list[int], data: st.DataObject
) -> None:
    ends = data.draw(st.sampled_from([b"\n", b""])) if records else b""
    written = b"\n".join(json.dumps(record).encode() for record in records) + ends
    rows = indexed(written, *(cut for cut in cuts if cut < len(written))).rows
    assert [row.extras for row in rows] == [row.extras for row in indexed(written).rows]
    assert [row.line for row in rows] == list(range(1, len(records) + 1))
    assert not [row.problem for row in rows if row.problem]
    lines = [written[row.offset : row.offset + row.size] for row in rows]
    assert [json.dumps(json.loads(line)) for line in lines] == [json.dumps(record) for record in records]


@given(st.binary(max_size=200))
def test_no_bytes_break_the_index(data: bytes) -> None:
    index = indexed(data)
    assert index.position + index.waits_for == len(data)
    assert len(index.rows) <= data.count(b"\n") + 1


def test_facts_of_a_dump_are_those_of_its_rows(played: Path) -> None:
    file = StepFile(played / "9.jsonl")
    rows = whole(file)
    records = list(read_dump(played / "9.jsonl"))
    assert [read_row(row) for row in rows] == records
    assert [row.score for row in rows] == [record["score"] for record in records]
    assert [row.sampled_tokens for row in rows] == [sum(record["response_mask"]) for record in records]
    assert [row.request_id for row in rows] == [record["request_id"] for record in records]
    assert {row.logprob for row in rows} == {-0.5}
    assert [(row.cause.upper(), row.masked) for row in rows].count(("INFRA", True)) == 1
    assert {outcome for row in rows for outcome in row.outcomes} == {"ok", "program_error"}
    first = rows[0]
    assert (first.turns, first.tool_calls, first.tool_errors, first.tools) == (2, 1, 0, ("echo",))
    assert first.extras["reward_parts.gsm8k/correct"] == 1.0


def test_plain_dump_of_verl_is_a_dump(write: Callable[..., Path]) -> None:
    rows = whole(StepFile(write(1, verl_row(0), verl_row(1, score="0.5"), verl_row(2, score=float("nan")))))
    assert [row.score for row in rows[:2]] == [0.0, 0.5]
    assert rows[2].score != rows[2].score
    assert (rows[0].turns, rows[0].response_tokens, rows[0].uid) == (None, None, "")
    assert rows[1].extras == {"acc": 0.0, "pred": "six"}
    assert rows[0].prompt_key == rows[1].prompt_key != rows[2].prompt_key


def test_broken_line_is_a_row_that_says_so(write: Callable[..., Path]) -> None:
    path = write(1, verl_row(0), '{"score": ', "", "[1]", verl_row(1))
    file = StepFile(path)
    rows = whole(file)
    assert [(row.line, bool(row.problem)) for row in rows] == [(1, False), (2, True), (4, True), (5, False)]
    assert "is not JSON" in rows[1].problem
    assert rows[2].problem == "is a list, must be an object"
    assert read_row(rows[1]) == rows[1].problem
    assert read_bytes(rows[1]) == b'{"score": '


def test_line_that_is_too_long_is_broken_and_not_held() -> None:
    long = b'{"a": "' + b"x" * 1000 + b'"}\n{"score": 1}\n'
    rows = indexed(long, *range(0, 1000, 100), max_line_bytes=300).rows
    assert [(row.line, row.problem, row.score) for row in rows] == [
        (1, "has 1009 bytes, more than 300", None),
        (2, "", 1.0),
    ]
    assert rows[1].offset == long.index(b'{"score"')


def test_half_written_last_line_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    line = json.dumps(verl_row(0)).encode()
    path.write_bytes(line + b"\n" + line[:20])
    file = StepFile(path)
    assert (file.advance(), len(file.rows), file.waits_for) == (True, 1, 20)
    path.write_bytes(line + b"\n" + line)  # whole, though its end is still missing
    assert (file.advance(), len(file.rows), file.waits_for) == (True, 2, 0)
    path.write_bytes(line + b"\n" + line + b"\n" + line + b"\n")
    assert (file.advance(), len(file.rows)) == (True, 3)
    assert [row.offset for row in file.rows] == [0, len(line) + 1, 2 * len(line) + 2]


def test_file_that_was_replaced_is_read_anew(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(1, verl_row(0), verl_row(1))
    file = StepFile(path)
    (first, _) = whole(file)
    assert read_row(first) == verl_row(0)
    other = tmp_path / "other"
    other.write_text(json.dumps(verl_row(7)) + "\n" + json.dumps(verl_row(8)) + "\n")
    other.replace(path)
    rows = whole(file)
    assert [row.score for row in rows] == [7.0, 8.0]
    assert read_row(rows[0]) == verl_row(7)
    path.write_text("")
    assert whole(file) == []


def test_file_that_went_away_keeps_its_rows(write: Callable[..., Path]) -> None:
    path = write(1, verl_row(0))
    file = StepFile(path)
    (row,) = whole(file)
    path.unlink()
    assert (file.advance(), file.problem) == (True, "No such file or directory")
    assert (file.rows, read_row(row)) == ([row], "No such file or directory")


def test_row_of_a_shortened_file_is_no_row(write: Callable[..., Path]) -> None:
    path = write(1, verl_row(0), verl_row(1))
    file = StepFile(path)
    row = whole(file)[1]
    path.write_text("{}\n")
    assert read_row(row) == "the file was shortened"


def test_steps_are_ordered_by_number(write: Callable[..., Path], tmp_path: Path) -> None:
    for step in (10, 9, "val", 100, "007"):
        write(step, verl_row(0))
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "folder.jsonl").mkdir()
    folder = DumpFolder(tmp_path)
    assert [step.stem for step in folder.steps] == ["007", "9", "10", "100", "val"]
    write(11, verl_row(0))
    assert [step.stem for step in folder.refresh()] == ["007", "9", "10", "11", "100", "val"]


def test_a_folder_of_runs_is_the_one_that_was_written_to_last(tmp_path: Path) -> None:
    for age, name in enumerate(("run/1.jsonl", "old/1.jsonl", "trained/rollouts/7.jsonl", "older/2.jsonl")):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("")
        os.utime(path, (2e9 - age, 2e9 - age))
    (tmp_path / "trained" / "metrics.jsonl").write_text("{}\n")
    os.utime(tmp_path / "trained" / "metrics.jsonl", (3e9, 3e9))
    assert DumpFolder(tmp_path).steps == (tmp_path / "run" / "1.jsonl",)
    assert DumpFolder(tmp_path / "trained").steps == (tmp_path / "trained" / "rollouts" / "7.jsonl",)
    os.utime(tmp_path / "trained" / "rollouts" / "7.jsonl", (3e9, 3e9))
    assert DumpFolder(tmp_path).path == tmp_path / "trained" / "rollouts"
    with pytest.raises(ConfigError, match="neither a folder nor a file"):
        DumpFolder(tmp_path / "absent")
    assert [step.stem for step in DumpFolder(tmp_path / "run" / "1.jsonl").steps] == ["1"]


def test_line_is_parsed_or_says_what_is_wrong() -> None:
    assert parse_line(b'{"a": 1}') == {"a": 1}
    assert parse_line(b"\xff") == "is not UTF-8"
    assert parse_line(b"[" * 100_000) == "is nested too deeply"


def test_number_that_no_float_holds_is_a_number(write: Callable[..., Path]) -> None:
    huge = {"turns": 10**400, "score": 10**400, "extra": 10**400, "logprobs": [10**400], "response_mask": [1]}
    (row,) = whole(StepFile(write(1, huge)))
    assert (row.problem, row.turns, row.score, row.logprob) == ("", 10**400, None, None)
    assert FIELDS["turns"].text(row).startswith("1000")
