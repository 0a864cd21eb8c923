"""Ground truths in the forms that are in use, and a sentence for each that says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from executor_service import Cause, Checker, CheckerConvention, FunctionCase, PytestCase, StdioCase
from rollout.rewards import NotScored, Sample
from rollout.rewards.code.grading import sampled
from rollout.rewards.code.source import after_future, entry_of
from rollout.rewards.code.truth import asserts_of, calls_of, document_of, programs_of, pytests_of


@pytest.mark.parametrize(
    "document",
    [
        {"inputs": ["1\n", None], "outputs": ["2\n", ""]},
        {"inputs": [["1", ""], []], "outputs": [["2", ""], None]},
        [{"input": "1\n", "output": "2\n"}, {"input": "", "output": ""}],
        [{"input": {"stdin": "1\n"}, "output": {"stdout": "2\n"}}, {"stdin": "", "stdout": ""}],
    ],
)
def test_inputs_and_outputs(document: Any) -> None:
    assert programs_of(document).cases == (StdioCase(b"1\n", b"2\n", "0"), StdioCase(b"", b"", "1"))


def test_a_checker_of_the_problem() -> None:
    document: dict[str, Any] = {"inputs": ["1"], "outputs": ["2"], "checker": "def check(a, b, c): return True"}
    assert programs_of(document).checker == Checker(document["checker"], entry_point="check")
    document["checker"] = {"code": "int main(){}", "language": "cpp", "files": {"testlib.h": "//"}}
    checker = programs_of(document).checker
    assert checker is not None
    assert (checker.language, checker.files[0].path, checker.files[0].content) == ("cpp", "testlib.h", b"//")
    document["interactor"] = {"code": "int main(){}", "language": "cpp", "convention": "kattis", "full_points": 100}
    interactor = programs_of(document).interactor
    assert interactor is not None
    assert (interactor.convention, interactor.full_points) == (CheckerConvention.KATTIS, 100.0)


def test_other_outputs_that_are_right() -> None:
    document = [{"input": "1", "output": "2", "alternatives": ["3", ["4", "5"]]}, {"input": "", "output": "6"}]
    first, second = programs_of(document).cases
    assert (first.expected_stdout, first.alternatives) == (b"2", (b"3", b"4\n5"))
    assert second.alternatives == ()


@pytest.mark.parametrize(
    ("given", "wanted", "arguments", "value"),
    [
        ("1\n[2, 3]", "[1]", [1, [2, 3]], [1]),
        ("1\n[2, 3]\n", "5", [1, [2, 3]], 5),
        ('[\n  1,\n  2\n]\n"x"', '"y"', [[1, 2], "x"], "y"),
        ("", "null", [], None),
        ("1", "plain text", [1], "plain text"),
        ([1, 2], [3], [1, 2], 3),
        ([[1, 2]], [[3]], [[1, 2]], [3]),
        ([[1, 2]], [1, 2], [[1, 2]], [1, 2]),
        ([{"a": 1}], True, [{"a": 1}], True),
    ],
)
def test_calls(given: Any, wanted: Any, arguments: Any, value: Any) -> None:
    calls = calls_of({"fn_name": "f", "inputs": [given], "outputs": [wanted]})
    expected = FunctionCase(tuple(arguments), value, case_id="0", tuples_are_lists=True)
    assert (calls.name, calls.cases) == ("f", (expected,))


def test_values_are_wrapped_all_or_not_at_all() -> None:
    calls = calls_of({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [1, 2]]})
    assert [case.expected for case in calls.cases] == [[1], [1, 2]]


@pytest.mark.parametrize("document", [["assert f()"], {"assert_case": ["assert f()"]}, "assert f()"])
def test_assertions(document: Any) -> None:
    asserts = asserts_of(document, {"test_setup_code": "import math"})
    assert [case.source for case in asserts.cases] == ["assert f()"]
    assert asserts.setup_code == "import math"


def test_files_of_tests() -> None:
    assert pytests_of("def test(): pass").test_files[0].path == "test_solution.py"
    found = pytests_of(
        {"test_files": {"a/test_x.py": "x"}, "files": [{"path": "d", "content": "é"}], "tests": ["t::a"]}
    )
    assert [file.path for file in found.test_files] == ["a/test_x.py"]
    assert found.files[0].content == "é".encode()
    assert found.cases == (PytestCase("t::a", "t::a"),)


@pytest.mark.parametrize(
    ("read", "document", "problem"),
    [
        (programs_of, {"inputs": [1], "outputs": []}, "has 1 inputs and 0 outputs"),
        (programs_of, {"inputs": [], "outputs": []}, "has no cases"),
        (programs_of, {"inputs": []}, "must have inputs and outputs"),
        (programs_of, {"inputs": ["1"], "outputs": ["2"], "fn_name": "f"}, "has fn_name"),
        (programs_of, {"inputs": [{}], "outputs": ["2"]}, "input 0 is an object"),
        (programs_of, {"inputs": ["\ud800"], "outputs": ["2"]}, "input 0 is not valid Unicode"),
        (programs_of, {"inputs": ["1"], "outputs": ["2"], "checker": {"program": "x"}}, "checker must be"),
        (programs_of, {"inputs": ["1"], "outputs": ["2"], "checker": {"code": "x", "convention": "icpc"}}, "kattis"),
        (programs_of, {"inputs": ["1"], "outputs": ["2"], "checker": {"code": "x", "full_points": 0}}, "full_points"),
        (programs_of, [{"input": "1", "output": "2", "alternatives": "3"}], "case 0 has alternatives '3'"),
        (programs_of, [{"in": 1}], "case 0 must be"),
        (programs_of, "42 is the answer", "'42 is the answer'"),
        (calls_of, {"inputs": ["1"], "outputs": ["2"]}, "has no fn_name"),
        (calls_of, {"fn_name": "f", "inputs": ["one"], "outputs": ["2"]}, "input 0 is 'one'"),
        (pytests_of, {"test_files": {}}, "has no test_files"),
        (pytests_of, {"test_files": {"a": 3}}, "test_files must be"),
        (pytests_of, 3, "is int"),
    ],
)
def test_what_says_nothing_is_the_tasks_fault(read: Any, document: Any, problem: str) -> None:
    with pytest.raises(NotScored, match=f"ground truth: .*{problem}") as raised:
        read(document)
    assert raised.value.cause is Cause.TASK


@pytest.mark.parametrize("document", [[], {"assert_case": []}, {}, ["assert f()", ""], [3]])
def test_assertions_that_say_nothing(document: Any) -> None:
    with pytest.raises(NotScored, match="assert"):
        asserts_of(document, {})


def test_the_row_stands_in_for_a_ground_truth() -> None:
    assert document_of(Sample("", "", row={"tests": '["a"]'}), "cases", "tests") == ["a"]
    assert document_of(Sample("", "[1]", row={"tests": '["a"]'}), "tests") == [1]
    assert document_of(Sample("", "no JSON")) == "no JSON"
    with pytest.raises(NotScored, match="the row has no cases or tests"):
        document_of(Sample("", ""), "cases", "tests")


def test_a_sample_of_the_cases_is_the_same_for_every_answer() -> None:
    cases = range(100)
    assert sampled(cases, 0, 1) == tuple(cases)
    assert sampled(cases, 200, 1) == tuple(cases)
    some = sampled(cases, 10, 1)
    assert some == sampled(cases, 10, 1) == tuple(sorted(set(some)))
    assert len(some) == 10
    assert some != sampled(cases, 10, 2)


def test_imports_go_behind_those_of_the_future() -> None:
    assert after_future("import a", "x = 1\n") == "import a\nx = 1\n"
    source = '"""Doc."""\nfrom __future__ import annotations\nx = 1\n'
    code = after_future("import a", source)
    assert code == '"""Doc."""\nfrom __future__ import annotations\nimport a\nx = 1\n'
    compile(code, "x", "exec")
    assert after_future("import a", "not python") == "import a\nnot python"


@pytest.mark.parametrize(
    ("source", "entry"),
    [
        ("def f(): pass", "f"),
        ("class Solution:\n    def f(self): pass", "Solution.f"),
        ("class Solution:\n    def f(self): pass\nf = Solution().f", "f"),
        ("class Solution:\n    def g(self): pass", "f"),
        ("class Other:\n    def f(self): pass", "f"),
        ("class Solution:\n    async def f(self): pass", "Solution.f"),
        ("def f(:", "f"),
    ],
)
def test_what_is_called(source: str, entry: str) -> None:
    assert entry_of(source, "f") == entry
