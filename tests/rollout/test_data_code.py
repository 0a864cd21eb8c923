"""`fairbox data code` as a person runs it: published rows in, rows of verl and env=code out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from rollout.cli import main
from rollout.data.code import read_code_problems
from tests.rollout.published_rows import CODE_CONTESTS, CODEFORCES, HUMANEVAL_PLUS, LEETCODE, LIVECODEBENCH

ROWS = [LIVECODEBENCH, LEETCODE, CODEFORCES | {"input_mode": "file"}, HUMANEVAL_PLUS, LIVECODEBENCH]


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_are_converted_and_what_is_left_out_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = written(tmp_path / "rows.jsonl", *ROWS)
    for name in ("one", "two"):
        assert main(["data", "code", f"input={rows}", f"out={tmp_path / name}.parquet"]) == 0
    out = tmp_path / "one.parquet"
    assert out.read_bytes() == (tmp_path / "two.parquet").read_bytes()
    said = capsys.readouterr().out
    assert f"3 problems in {out}: 2 of livecodebench/code_generation, 1 of evalplus/humanevalplus\n" in said
    assert f"left out 2 (in {tmp_path}/one.left_out.jsonl):\n" in said
    left = [json.loads(line) for line in (tmp_path / "one.left_out.jsonl").read_text().splitlines()]
    assert [(each["where"], each["uid"], each["why"]) for each in left] == [
        (f"{rows}:3", "", "files"),
        (f"{rows}:5", "livecodebench/abc300_a", "twice"),
    ]
    first, second, third = read_code_problems(out)
    assert (first.uid, second.uid, third.uid) == ("livecodebench/abc300_a", "livecodebench/3200", "HumanEval/2")
    assert [problem.reward for problem in (first, second, third)] == ["code_tests", "code_tests", "humaneval"]
    assert first.question == "Print the sum."
    row = parquet.read_table(out).to_pylist()[0]
    assert row["prompt"][0]["content"].startswith("Print the sum.\n\nWrite Python code.")
    assert (row["data_source"], row["reward_model"]["style"]) == ("livecodebench/code_generation", "rule")


def test_another_language_leaves_functions_out(tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.jsonl", *ROWS[:2])
    assert main(["data", "code", f"input={rows}", f"out={tmp_path}/out.parquet", "language=cpp"]) == 0
    (row,) = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert "```cpp" in row["prompt"][0]["content"]
    assert '"why": "needs Python"' in (tmp_path / "out.left_out.jsonl").read_text()


def test_the_largest_tests_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = {"input": ["1 2\n", "9" * 900_000, "3 4\n", "8" * 700_000], "output": ["3", "9", "7", "8"]}
    too_large = CODE_CONTESTS | {"name": "2", "public_tests": {"input": ["7" * 2_000_000], "output": ["7"]}}
    too_large["private_tests"] = None
    rows = written(tmp_path / "rows.jsonl", CODE_CONTESTS | {"private_tests": large}, too_large)
    assert main(["data", "code", f"input={rows}", f"out={tmp_path}/out.parquet", "max_mb=1"]) == 0
    (problem,) = read_code_problems(tmp_path / "out.parquet")
    assert json.loads(problem.ground_truth)["outputs"] == ["3\n", "3", "7", "8"]
    assert "the largest 1 tests of 1 problems were left out: max_mb allows more" in capsys.readouterr().out
    assert '"why": "too large"' in (tmp_path / "out.left_out.jsonl").read_text()


def test_no_row_ends_the_conversion(tmp_path: Path) -> None:
    odd = {"question": "q", "input_output": json.dumps({"inputs": ["1" * 2_000_000, "2"], "outputs": ["1"]})}
    rows = written(tmp_path / "rows.jsonl", odd, CODE_CONTESTS | {"description": "half a pair: \ud800"}, CODE_CONTESTS)
    assert main(["data", "code", f"input={rows}", f"out={tmp_path}/out.parquet", "max_mb=1"]) == 0
    assert len(read_code_problems(tmp_path / "out.parquet")) == 1
    left = [json.loads(line)["why"] for line in (tmp_path / "out.left_out.jsonl").read_text().splitlines()]
    assert left == ["too large", "bad row"]


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["input=ROWS", "out=o.jsonl"], 2, "out is 'o.jsonl', must end in .parquet"),
        (["input=absent.jsonl", "out=o.parquet"], 2, "input is 'absent.jsonl', which is neither a file nor"),
        (["input=ROWS", "out=OUT/o.parquet", "max_mb=0"], 2, "max_mb is 0, must be at least 1"),
        (["input=ROWS", "out=OUT/o.parquet"], 1, "became a problem"),
    ],
)
def test_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, problem: str
) -> None:
    rows = written(tmp_path / "rows.jsonl", {"x": 1})
    given = [word.replace("ROWS", str(rows)).replace("OUT", str(tmp_path)) for word in words]
    assert main(["data", "code", *given]) == code
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "o.parquet").exists()
