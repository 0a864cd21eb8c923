"""`fairbox data code` as a person runs it: published rows in, rows of verl and env=code out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from rollout.cli import main
from rollout.data import DataError
from rollout.data.code import read_code_problems
from tests.executor.servers import Server, running
from tests.rollout.published_rows import CODE_CONTESTS, CODEFORCES, HUMANEVAL_PLUS, LEETCODE, LIVECODEBENCH

ROWS = [LIVECODEBENCH, LEETCODE, CODEFORCES | {"input_mode": "file"}, HUMANEVAL_PLUS, LIVECODEBENCH]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("max_concurrent=4") as started:
        yield started


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


GENERATOR = """\
import random, sys
n, seed = map(int, sys.argv[1:])
random.seed(seed)
print(n)
print(*random.choices(range(9), k=n))
"""
GENERATED = {
    "id": "sum",
    "question": "Read n and n numbers. Print their sum.",
    "generators": [{"code": GENERATOR, "runs": ["1 1", "10 2"]}, "print(0)\nprint()"],
    "validator": "n = int(input())\nassert n <= 1000 and len(input().split()) == n, 'no such n'",
    "solution": "input()\nprint(sum(map(int, input().split())))",
    "time_limit_s": 2,
}


def test_tests_are_made_by_generators(tmp_path: Path, server: Server) -> None:
    large = GENERATED | {"id": "large", "generators": [{"code": GENERATOR, "runs": ["1001 1"]}]}
    fails = GENERATED | {"id": "fails", "generators": ["raise SystemExit('no luck')"]}
    unsolved = GENERATED | {"id": "unsolved", "solution": "import sys\nprint(sys.stdin.read())\nraise SystemExit(1)"}
    adds = {"code": "read n; read line; echo $((${line// /+}+0))", "language": "bash"}
    in_bash = GENERATED | {"id": "bash", "solution": adds}
    no_text = GENERATED | {"id": "no text", "generators": ["# \ud800"]}
    rows = written(tmp_path / "rows.jsonl", GENERATED, large, fails, unsolved, in_bash, no_text)
    out = tmp_path / "out.parquet"
    assert main(["data", "code", f"input={rows}", f"out={out}", f"executor={server.target}"]) == 0
    problems = read_code_problems(out)
    assert [problem.uid for problem in problems] == ["sum", "bash"]
    first, second = (json.loads(problem.ground_truth) for problem in problems)
    assert first == second
    assert first["time_limit_s"] == 2
    assert [len(text.split()) for text in first["inputs"]] == [2, 11, 1]
    sums = [f"{sum(map(int, text.split()[1:]))}\n" for text in first["inputs"]]
    assert first["outputs"] == sums
    left = [json.loads(line) for line in (tmp_path / "out.left_out.jsonl").read_text().splitlines()]
    assert [each["uid"] for each in left] == ["large", "fails", "unsolved", "no text"]
    assert [each["why"] for each in left] == ["no tests"] * 3 + ["bad row"]
    assert left[0]["problem"].startswith("validator of the test of '1001 1': NONZERO_EXIT, exit code 1:")
    assert left[0]["problem"].endswith("no such n")
    assert left[1]["problem"] == "generator of 'nothing': NONZERO_EXIT, exit code 1: no luck"
    assert left[2]["problem"].startswith("solution on the test of '1 1': NONZERO_EXIT")


def test_generators_need_an_executor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = written(tmp_path / "rows.jsonl", GENERATED, GENERATED | {"question": "Another."}, LIVECODEBENCH)
    assert main(["data", "code", f"input={rows}", f"out={tmp_path}/out.parquet"]) == 0
    left = [json.loads(line) for line in (tmp_path / "out.left_out.jsonl").read_text().splitlines()]
    assert [each["problem"] for each in left] == ["its tests are to be made by generators: name an executor"] * 2
    with pytest.raises(DataError, match=r"rows.jsonl:1: its tests are yet to be made: `fairbox data code` does that"):
        read_code_problems(rows)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"generators": []}, "generators must be a list that is not empty"),
        ({"generators": [{"code": "x", "runs": []}]}, r"generators\[0\].runs must be a list that is not empty"),
        ({"generators": [{"code": ""}]}, r"generators\[0\] must be a program, or an object of code, language, files"),
        ({"generators": [{"code": "x", "args": "1"}]}, r"generators\[0\] must be a program"),
        ({"solution": {"language": "cpp"}}, "solution must be a program"),
        ({"validator": 3}, "validator must be a program"),
        ({"time_limit_s": "2"}, "time_limit_s is '2', must be a number of seconds"),
    ],
)
def test_programs_that_make_no_tests(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=f"rows.jsonl:1: {problem}"):
        read_code_problems(written(tmp_path / "rows.jsonl", GENERATED | change))
