"""Rows as data sets publish them: what is read of each kind, and what is left out."""

from __future__ import annotations

import base64
import contextlib
import json
import pickle
import zlib
from typing import Any

import pytest

from rollout.data.code import RowFault, UnusableRow, problem_of
from tests.rollout.published_rows import (
    CODE_CONTESTS,
    CODE_CONTESTS_PLUS,
    CODEFORCES,
    HUMANEVAL_PLUS,
    LEETCODE,
    LIVECODEBENCH,
    METHOD,
    PRIVATE,
    SUM,
    TACO,
    packed,
)

BOTH = {"inputs": ["1 2\n", "20 22\n"], "outputs": ["3\n", "42\n"]}


@pytest.mark.parametrize(
    ("row", "uid", "truth", "solution"),
    [
        (LIVECODEBENCH, "livecodebench/abc300_a", BOTH, ""),
        (LEETCODE, "livecodebench/3200", {"inputs": ["1\n2", "20\n22"], "outputs": ["3", "42"], "fn_name": "add"}, ""),
        (CODE_CONTESTS, "code_contests/1_A. Sum", BOTH | {"time_limit_s": 1.5}, SUM),
        (CODEFORCES, "codeforces/1/A", BOTH | {"time_limit_s": 2.0}, ""),
        (TACO, "row", {"inputs": ["1 2\n"], "outputs": ["3\n"], "time_limit_s": 2.0}, SUM),
    ],
    ids=["livecodebench", "leetcode", "code_contests", "codeforces", "taco"],
)
def test_each_kind_has_all_of_its_tests(row: Any, uid: str, truth: Any, solution: str) -> None:
    problem = problem_of(row, "row")
    assert (problem.uid, json.loads(problem.ground_truth), problem.solution) == (uid, truth, solution)
    assert problem.reward == "code_tests"
    assert problem.question.startswith("Print the sum.")


def test_a_method_is_named_in_the_question() -> None:
    assert "def add(self" in problem_of(LEETCODE, "row").question
    assert "Start from" not in problem_of(LIVECODEBENCH, "row").question
    with_fn = TACO | {"starter_code": METHOD, "input_output": '{"fn_name": "add", "inputs": [[1]], "outputs": [1]}'}
    assert "def add(self" in problem_of(with_fn, "row").question


def test_a_question_of_codeforces_has_its_parts() -> None:
    question = problem_of(CODEFORCES, "row").question
    assert question == (
        "Print the sum.\n\nInput\nTwo numbers.\n\nOutput\nTheir sum.\n\nExample input\n1 2\nExample output\n3\n\n"
        "Note\nNumbers are whole."
    )


def test_checkers_come_along() -> None:
    plus = json.loads(problem_of(CODE_CONTESTS_PLUS, "row").ground_truth)
    assert plus == BOTH | {
        "time_limit_s": 2.0,
        "checker": {"code": CODE_CONTESTS_PLUS["checker"].strip(), "language": "cpp"},
    }
    forces = json.loads(problem_of(CODEFORCES | {"generated_checker": "print(1)"}, "row").ground_truth)
    assert forces["checker"]["entry_point"] == "check"
    assert forces["checker"]["files"] == {"codeforces_checker.py": "print(1)"}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_private_tests_of_every_pickle_protocol(protocol: int) -> None:
    row = LIVECODEBENCH | {"private_test_cases": packed(PRIVATE, protocol)}
    assert json.loads(problem_of(row, "row").ground_truth)["inputs"] == BOTH["inputs"]


class _Opens:
    def __reduce__(self) -> Any:
        return open, ("/dev/null",)


def _packed_pickle(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    "private",
    [
        _packed_pickle(pickle.dumps(_Opens())),
        _packed_pickle(pickle.dumps([json.dumps(PRIVATE)])),
        _packed_pickle(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f."),  # a text of 2^63 bytes
        _packed_pickle(b"r\xff\xff\xff\xff."),  # a memo of 2^32 places
        _packed_pickle(b"not a pickle"),
        _packed_pickle(pickle.dumps("no JSON")),
        _packed_pickle(pickle.dumps("[" * 100_000)),
        base64.b64encode(b"not compressed").decode(),
        "no base64!",
        "[" * 100_000,
        "[1]",
        '{"input": 1}',
        '[{"input": "1"}]',
    ],
)
def test_private_tests_are_never_run(private: str) -> None:
    with pytest.raises(UnusableRow, match=r"^row: private_test_cases ") as caught:
        problem_of(LIVECODEBENCH | {"private_test_cases": private}, "row")
    assert caught.value.fault is RowFault.BAD_ROW


def test_private_tests_that_unpack_to_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout.data.code.livecodebench.MOST_BYTES", 1000)
    row = LIVECODEBENCH | {"private_test_cases": packed([PRIVATE[0] | {"input": "1" * 10_000}])}
    with pytest.raises(UnusableRow) as caught:
        problem_of(row, "row")
    assert caught.value.fault is RowFault.TOO_LARGE


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (CODE_CONTESTS | {"input_file": "in.txt"}, RowFault.FILES),
        (CODE_CONTESTS | {"public_tests": None, "private_tests": None, "generated_tests": None}, RowFault.NO_TESTS),
        (CODE_CONTESTS | {"private_tests": {"input": ["1"], "output": []}}, RowFault.BAD_ROW),
        (CODE_CONTESTS_PLUS | {"test_cases": []}, RowFault.NO_TESTS),
        (CODE_CONTESTS_PLUS | {"test_cases": [{"input": "1", "output": None}]}, RowFault.BAD_ROW),
        (CODEFORCES | {"interaction_format": "Ask."}, RowFault.INTERACTIVE),
        (CODEFORCES | {"input_mode": "file"}, RowFault.FILES),
        (CODEFORCES | {"official_tests_complete": False}, RowFault.INCOMPLETE),
        (CODEFORCES | {"official_tests": None}, RowFault.NO_TESTS),
        (CODEFORCES | {"description": None}, RowFault.BAD_ROW),
        (TACO | {"input_output": '{"inputs": [], "outputs": []}'}, RowFault.NO_TESTS),
        (LIVECODEBENCH | {"public_test_cases": "[]", "private_test_cases": "[]"}, RowFault.NO_TESTS),
        (LEETCODE | {"metadata": "{}"}, RowFault.BAD_ROW),
        (HUMANEVAL_PLUS | {"task_id": "Mbpp/2"}, RowFault.OTHER_EDITION),
        (HUMANEVAL_PLUS | {"base_input": [], "plus_input": []}, RowFault.BAD_ROW),
        (HUMANEVAL_PLUS | {"atol": "much"}, RowFault.BAD_ROW),
        ({"question": "RowFault?"}, RowFault.BAD_ROW),
    ],
)
def test_what_can_not_be_graded_says_why(row: Any, fault: RowFault) -> None:
    with pytest.raises(UnusableRow, match=r"^row: ") as caught:
        problem_of(row, "row")
    assert caught.value.fault is fault


@pytest.mark.parametrize("value", [None, 3, "text", [1], {"a": 1}, [{"a": 1}]])
@pytest.mark.parametrize(
    "row", [LIVECODEBENCH, LEETCODE, CODE_CONTESTS, CODE_CONTESTS_PLUS, CODEFORCES, TACO, HUMANEVAL_PLUS]
)
def test_columns_of_another_kind_end_nothing(row: dict[str, Any], value: Any) -> None:
    for column in row:
        with contextlib.suppress(UnusableRow):  # and nothing else
            assert problem_of(row | {column: value}, "row").ground_truth


def test_inputs_of_evalplus_fit_a_test() -> None:
    large = [["x" * 800_000], ["y" * 500_000], ["z" * 300_000]]
    problem = problem_of(HUMANEVAL_PLUS | {"plus_input": large}, "row")
    test = json.loads(problem.ground_truth)["test"]
    assert len(test) < 1 << 20
    assert [letter * 1000 in test for letter in "xyz"] == [False, True, True]
