"""Published rows, converted and graded: the right program is worth 1, a wrong one 0, for every kind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import ConfigError
from rollout.data.code import CodeProblem, Converted, problem_of, usable_problems, verl_rows
from rollout.data.code.executed import solved
from rollout.rewards import NotScored
from tests.executor.servers import Server
from tests.rollout.published_rows import (
    ANY_ORDER_CHECKER,
    CODE_CONTESTS,
    CODE_CONTESTS_PLUS,
    CODEFORCES,
    HUMANEVAL_PLUS,
    LEETCODE,
    LIVECODEBENCH,
    METHOD,
    SUM,
    TACO,
)

TESTLIB = r"""
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
struct Stream {
    FILE* file;
    int readInt() { int value; if (fscanf(file, "%d", &value) != 1) exit(2); return value; }
};
static Stream inf, ouf, ans;
enum Verdict { _ok, _wa };
static void registerTestlibCmd(int, char** argv) {
    inf.file = fopen(argv[1], "r"); ouf.file = fopen(argv[2], "r"); ans.file = fopen(argv[3], "r");
}
static void quitf(Verdict verdict, const char* said) { fprintf(stderr, "%s\n", said); exit(verdict); }
"""
"""As much of testlib.h as the rows' checker uses."""
SWAPPED = "a, b = map(int, input().split())\nprint(b, a)\n"
FENCED = "```python\n{}\n```"
HALVES = [
    ("    return x / 2\n", 1.0),
    ("    return x * 0.5000000001\n", 1.0),  # within 1e-7 of it
    ("    return x * 0.50001\n", 0.0),
    ("    return int(x / 2)\n", 0.0),
    ("    return x // 2\n", 0.0),
]


def converted(row: Any) -> CodeProblem:
    """The problem as env=code reads it once it was converted."""
    problems = usable_problems([("row", row)], language="python", most_bytes=1 << 20, found=Converted())
    (made,) = verl_rows(problems, language="python", found=Converted())
    return problem_of(made, "row")


@pytest.mark.parametrize(
    ("row", "program"),
    [
        (LIVECODEBENCH, SUM),
        (LEETCODE, METHOD),
        (CODE_CONTESTS, SUM),
        (CODEFORCES, SUM),
        (TACO, SUM),
    ],
    ids=["livecodebench", "leetcode", "code_contests", "codeforces", "taco"],
)
async def test_right_and_wrong_programs(scored: Callable[..., Any], row: Any, program: str) -> None:
    problem = converted(row)
    assert problem.reward == "code_tests"
    right = await scored("code_tests", FENCED.format(program), problem.ground_truth)
    wrong = await scored("code_tests", FENCED.format(program.replace("a + b", "a - b")), problem.ground_truth)
    assert (right.value, wrong.value) == (1.0, 0.0)


async def test_a_checker_of_codeforces_decides(scored: Callable[..., Any]) -> None:
    tests = [{"input": "1 2\n", "output": "1 2\n"}]
    problem = converted(CODEFORCES | {"official_tests": tests, "generated_checker": ANY_ORDER_CHECKER})
    answers = [SWAPPED, SWAPPED.replace("b, a", "b, b"), "print()\n"]
    rewards = [await scored("code_tests", FENCED.format(answer), problem.ground_truth) for answer in answers]
    assert [reward.value for reward in rewards] == [1.0, 0.0, 0.0]
    broken = converted(CODEFORCES | {"generated_checker": "import absent"})
    with pytest.raises(NotScored, match="BROKEN_CASE"):
        await scored("code_tests", FENCED.format(SUM), broken.ground_truth)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
async def test_a_checker_in_cpp_gets_testlib(scored: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "testlib.h").write_text(TESTLIB)
    problem = converted(CODE_CONTESTS_PLUS)
    how = {"testlib": str(tmp_path / "testlib.h")}
    right = await scored("code_tests", FENCED.format(SUM), problem.ground_truth, **how)
    wrong = await scored("code_tests", FENCED.format(SUM.replace("+", "-")), problem.ground_truth, **how)
    assert (right.value, wrong.value) == (1.0, 0.0)
    with pytest.raises(NotScored, match=r"testlib\.h"):
        await scored("code_tests", FENCED.format(SUM), problem.ground_truth)


async def test_what_can_not_be_graded_so_is_not_scored(scored: Callable[..., Any]) -> None:
    truth = converted(CODE_CONTESTS_PLUS).ground_truth
    with pytest.raises(ConfigError, match=r"testlib is 'absent\.h': No such file"):
        await scored("code_tests", FENCED.format(SUM), truth, testlib="absent.h")
    with pytest.raises(NotScored, match="calls Python, but the language is cpp"):
        await scored("code_tests", "", converted(LEETCODE).ground_truth, language="cpp")
    with pytest.raises(NotScored, match="time_limit_s is 'long', must be a number of seconds"):
        await scored("code_tests", "", json.dumps({"inputs": [""], "outputs": [""], "time_limit_s": "long"}))


@pytest.mark.parametrize(("body", "value"), HALVES)
async def test_evalplus_compares_with_its_reference(scored: Callable[..., Any], body: str, value: float) -> None:
    problem = converted(HUMANEVAL_PLUS)
    assert problem.reward == "humaneval"
    for reward in ("humaneval", "code_tests"):
        assert (await scored(reward, body, problem.ground_truth)).value == value


async def test_a_root_may_be_another_than_the_references(scored: Callable[..., Any]) -> None:
    prompt = "def poly(xs, x):\n    return sum(c * x**i for i, c in enumerate(xs))\n\n\ndef find_zero(xs):\n    "
    row = HUMANEVAL_PLUS | {
        "prompt": prompt,
        "entry_point": "find_zero",
        "canonical_solution": "return 1.0\n",
        "base_input": [[[-1, 0, 1]]],
        "plus_input": [],
        "atol": 1e-4,
    }
    truth = converted(row).ground_truth
    values = [(await scored("humaneval", f"    return {root}\n", truth)).value for root in ("1.0", "-1.0", "0.5")]
    assert values == [1.0, 1.0, 0.0]


async def test_the_problems_own_time_limit_counts_times_a_factor(scored: Callable[..., Any]) -> None:
    row = CODE_CONTESTS | {"time_limit": {"seconds": 0, "nanos": 100_000_000}}
    slow = FENCED.format(f"import time\ntime.sleep(1)\n{SUM}")
    truth = converted(row).ground_truth
    limited = await scored("code_tests", slow, truth, time_factor=2.0)
    assert (limited.value, limited.parts["time_limit"]) == (0.0, 1.0)
    assert (await scored("code_tests", slow, truth, time_factor=200.0)).value == 1.0
    assert (await scored("code_tests", slow, truth)).value == 1.0


async def test_an_interactor_of_the_ground_truth(scored: Callable[..., Any]) -> None:
    interactor = "import sys\nnumber = open(sys.argv[1]).read()\nprint(number, flush=True)\n"
    interactor += "sys.exit(0 if int(input()) == 2 * int(number) else 1)\n"
    truth = json.dumps({"inputs": ["21", "4"], "outputs": ["", ""], "interactor": interactor})
    programs = ["print(2 * int(input()))", "print(int(input()))", "pass"]
    rewards = [await scored("code_tests", FENCED.format(program), truth) for program in programs]
    assert [reward.value for reward in rewards] == [1.0, 0.0, 0.0]
    broken = json.dumps({"inputs": ["1"], "outputs": [""], "interactor": {"code": "import absent"}})
    with pytest.raises(NotScored, match="BROKEN_CASE"):
        await scored("code_tests", FENCED.format("input()"), broken)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_rows_whose_own_solution_fails_are_left_out(grading_server: Server) -> None:
    wrong = CODE_CONTESTS | {
        "name": "wrong",
        "description": "Add.",
        "solutions": {"language": [3], "solution": ["print(1)"]},
    }
    none = CODE_CONTESTS | {"name": "none", "description": "Sum up.", "solutions": None}
    broken = CODE_CONTESTS_PLUS | {"checker": "no C++"}
    records = [
        (f"row {number}", row) for number, row in enumerate((CODE_CONTESTS, wrong, none, broken, HUMANEVAL_PLUS))
    ]
    found = Converted()
    problems = usable_problems(records, language="python", most_bytes=1 << 20, found=found)
    kept = [problem.uid for problem in solved(problems, grading_server.target, found)]
    assert kept == ["code_contests/1_A. Sum", "code_contests/none", "HumanEval/2"]
    assert found.unchecked == 1
    assert [(left.uid, left.why.value) for left in found.left] == [
        ("code_contests/wrong", "solution fails"),
        ("code_contests_plus/1_A", "solution fails"),
    ]
    assert found.left[0].problem == "its solution: passed 0%, wrong 100%, failed 0%, time_limit 0% of 2 tests"
    assert "does not compile" in found.left[1].problem
