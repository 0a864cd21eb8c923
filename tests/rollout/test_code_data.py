"""Readers of programming problems: each format, its reward function, and a name for every bad row."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from rollout.data import DataError
from rollout.data.code import read_code_problems
from rollout.rewards import reward_names

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def f():\n",
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate): ...",
    "entry_point": "f",
}
MBPP = {
    "task_id": 2,
    "text": "Write f.",
    "code": "def f(): ...",
    "test_list": ["assert f()"],
    "test_setup_code": "x = 1",
}
PLUS = {
    "task_id": 2,
    "prompt": "Write f.",
    "code": "def f(): ...",
    "test_imports": ["import numpy"],
    "test_list": ["assert f()"],
    "test": "for each in range(9):\n    assert f()",
}
NAMED = MBPP | {"code": "def sum(a, b): ...\ndef abs(a): ...", "test_list": ["assert sum(1, 2) == 3"]}
APPS = {"problem_id": 7, "question": "Print.", "input_output": '{"inputs": ["1"], "outputs": ["2"]}'}
VERL = {
    "data_source": "taco",
    "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "Print."}],
    "reward_model": {"style": "rule", "ground_truth": '{"inputs": ["1"], "outputs": ["2"]}'},
}


def written(path: Path, *records: Any) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_every_format_has_the_ground_truth_of_its_reward_function(tmp_path: Path) -> None:
    path = written(tmp_path / "all.jsonl.gz", HUMANEVAL, MBPP, APPS, VERL)
    humaneval, mbpp, apps, verl = read_code_problems(path)
    assert (humaneval.uid, humaneval.question, humaneval.solution) == (
        "HumanEval/0",
        "def f():\n",
        "def f():\n    return 1\n",
    )
    assert set(json.loads(humaneval.ground_truth)) == {"prompt", "test", "entry_point"}
    assert json.loads(mbpp.ground_truth) == {"assert_case": ["assert f()"], "setup_code": "x = 1"}
    assert mbpp.question == "Write f.\nYour code should pass this test:\nassert f()"
    assert (apps.question, apps.ground_truth, apps.where) == ("Print.", APPS["input_output"], f"{path}:3")
    assert (verl.question, verl.data_source) == ("Print.", "taco")
    plus, named = read_code_problems(written(tmp_path / "plus.jsonl", PLUS, NAMED))
    assert json.loads(plus.ground_truth) == {"assert_case": [PLUS["test"]], "setup_code": "import numpy"}
    assert plus.question.endswith("assert f()")
    assert json.loads(named.ground_truth)["setup_code"] == "x = 1\nfrom solution import sum"
    rewards = [problem.reward for problem in (humaneval, mbpp, apps, verl)]
    assert rewards == ["humaneval", "code_asserts", "code_tests", "code_tests"]
    assert set(rewards) <= set(reward_names())


@pytest.mark.parametrize(
    ("test", "decides"),
    [
        ("def assertion(out, exp):\n    same = out == exp\nassertion(f(), 1)", False),
        ("f()", False),
        ("def assertion(out, exp):\n    assert out == exp\nassertion(f(), 1)", True),
        ("import numpy\nnumpy.testing.assert_allclose(f(), 1)", True),
        ("if f() != 1:\n    raise ValueError", True),
    ],
)
def test_a_test_that_decides_nothing_has_the_assertions_beside_it(tmp_path: Path, test: str, decides: bool) -> None:
    [problem] = read_code_problems(written(tmp_path / "plus.jsonl", PLUS | {"test": test}))
    assert json.loads(problem.ground_truth)["assert_case"] == [test, *([] if decides else ["assert f()"])]


def test_parquet_and_limits(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([VERL, VERL | {"data_source": "apps"}]), path)
    assert [problem.data_source for problem in read_code_problems(path)] == ["taco", "apps"]
    assert len(read_code_problems(path, 1)) == 1


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ([1], "must be an object"),
        ({"x": 1}, "needs one of"),
        (HUMANEVAL | {"prompt": ""}, "prompt must be a text"),
        (MBPP | {"test_list": []}, "test_list must be a list"),
        (MBPP | {"text": None}, "text must be a text"),
        (APPS | {"input_output": ""}, "has no tests"),
        (APPS | {"input_output": "42"}, "must be JSON with cases"),
        (APPS | {"question": ""}, "needs question"),
        (VERL | {"reward_model": {"ground_truth": "42"}}, "must be JSON with cases"),
        (VERL | {"prompt": []}, "needs extra_info.question"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, record: Any, problem: str) -> None:
    path = written(tmp_path / "rows.jsonl", APPS, record)
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: .*{problem}"):
        read_code_problems(path)


@pytest.mark.parametrize(("name", "content"), [("x.jsonl", b""), ("x.csv", b""), ("x.jsonl.gz", b"no gzip"), ("", b"")])
def test_a_file_that_can_not_be_used(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name if name else tmp_path / "missing.jsonl"
    if name:
        path.write_bytes(content)
    with pytest.raises(DataError, match=path.name):
        read_code_problems(path)
