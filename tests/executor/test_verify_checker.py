"""Checkers and tolerances on a real server: several outputs are right, a broken checker is nobody's wrong answer, and
a candidate that breaks one is wrong."""

from __future__ import annotations

import pytest

from executor_service import (
    Cause,
    Checker,
    CheckerConvention,
    Comparison,
    ExecutorClient,
    FunctionCase,
    InputFile,
    InvalidRequest,
    Limits,
    StdioCase,
    Tolerance,
    Verdict,
)
from tests.executor.servers import Server, wait_for

ANY_ORDER = Checker(
    "def numbers(text):\n    return sorted(map(int, text.split()))\n"
    "def check(given, expected, actual):\n    return numbers(actual) == numbers(expected)\n",
    entry_point="check",
)
TESTLIB = Checker(
    "import sys\n"
    "given, output, answer = (open(path).read() for path in sys.argv[1:])\n"
    "assert given == 'in' and answer == '3 1 2'\n"
    "sys.exit(0 if sorted(output.split()) == sorted(answer.split()) else 'sizes differ' and 1)\n"
)
CASE = StdioCase(b"in", b"3 1 2")
KATTIS = CheckerConvention.KATTIS


@pytest.mark.parametrize("checker", [ANY_ORDER, TESTLIB])
@pytest.mark.parametrize(
    ("output", "verdict"), [("1 2 3", Verdict.PASSED), ("3 1 2", Verdict.PASSED), ("1 2 4", Verdict.WRONG_ANSWER)]
)
async def test_a_checker_decides(executor: ExecutorClient, checker: Checker, output: str, verdict: Verdict) -> None:
    result = await executor.verify(f"print({output!r})", [CASE], checker=checker)
    [case] = result.cases
    assert (case.verdict, case.cause) == (verdict, Cause.POLICY), case.message
    assert case.execution is not None
    assert case.execution.stdout.text.strip() == output


async def test_who_breaks_a_checker_is_wrong(executor: ExecutorClient) -> None:
    """It raises for this output, and would not for the right one."""
    result = await executor.verify("print('no numbers')", [CASE], checker=ANY_ORDER)
    assert [(case.verdict, case.cause) for case in result.cases] == [(Verdict.WRONG_ANSWER, Cause.POLICY)]


@pytest.mark.parametrize(
    "code",
    [
        "def check(given, expected, actual):\n    raise RuntimeError('broken')",
        "def check(given, expected, actual):\n    return 'half'",
        "def check(given, expected, actual):\n    return 1.5",
        "def check(given, expected, actual):\n    return float('nan')",
        "def check(given, expected, actual):\n    raise SystemExit(0)",
        "def other(): pass",
        "def check(:",
        "def check(given, expected, actual):\n    while True: pass",
    ],
)
async def test_a_checker_that_fails_on_the_expected_output_is_the_tasks(executor: ExecutorClient, code: str) -> None:
    checker = Checker(code, entry_point="check", limits=Limits(wall_time_s=1))
    result = await executor.verify("print('3 1 2')", [CASE], checker=checker)
    assert [(case.verdict, case.cause) for case in result.cases] == [(Verdict.BROKEN_CASE, Cause.TASK)]
    assert "checker failed" in result.cases[0].message


async def test_a_program_of_exit_code_3_has_failed_and_not_judged(executor: ExecutorClient) -> None:
    result = await executor.verify("print(1)", [CASE], checker=Checker("raise SystemExit(3)"))
    assert result.cause is Cause.TASK


async def test_the_candidate_sees_nothing_of_the_checker(executor: ExecutorClient, server: Server) -> None:
    code = (
        "import atexit, os, threading, time\n"
        "print(sorted(os.listdir('.')), len(os.listdir('/tmp')))\n"
        "if os.fork() == 0:\n"
        "    while True:\n        time.sleep(0.01)\n        open('/tmp/verdict', 'w').write('0')\n"
    )
    spy = Checker(
        "import os\ndef check(given, expected, actual):\n"
        "    assert not os.path.exists('/tmp/verdict')\n    assert os.path.exists('data.txt')\n"
        "    return actual == \"['main.py'] 0\\n\"\n",
        entry_point="check",
        files=(InputFile("data.txt", b"secret"),),
    )
    result = await executor.verify(code, [CASE], checker=spy)
    assert result.all_passed, [(case.verdict, case.message, case.execution) for case in result.cases]
    wait_for(lambda: server.status().running == 0)


async def test_a_program_that_fails_is_not_checked(executor: ExecutorClient) -> None:
    yes = Checker("def check(*texts): return True", entry_point="check")
    result = await executor.verify("print(1)\nraise SystemExit(1)", [CASE], checker=yes)
    assert [case.verdict for case in result.cases] == [Verdict.FAILED]


@pytest.mark.parametrize(
    ("output", "tolerance", "same"),
    [
        ("100.4", None, False),
        ("100.4", Tolerance(absolute=0.5, relative=0), True),
        ("100.4", Tolerance(absolute=0.1, relative=0.01), True),
        ("100.4", Tolerance(absolute=0.1, relative=0.001), False),
        ("100.0000001", Tolerance(0, 0), False),
        ("100.0", Tolerance(0, 0), True),
    ],
)
async def test_numbers_may_differ_by_the_tolerance(
    executor: ExecutorClient, output: str, tolerance: Tolerance | None, same: bool
) -> None:
    comparison = Comparison.FLOAT
    cases = [StdioCase(b"", b"100.00")]
    result = await executor.verify(f"print({output})", cases, comparison=comparison, tolerance=tolerance)
    assert result.all_passed is same
    code = f"def f(): return [{output}]"
    calls = [FunctionCase((), [100.0])]
    result = await executor.verify(code, calls, entry_point="f", comparison=comparison, tolerance=tolerance)
    assert result.all_passed is same


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        ({"checker": Checker("")}, {"checker.code"}),
        ({"checker": Checker("", entry_point="check")}, {"checker.code"}),
        ({"checker": Checker("x", entry_point="a.b")}, {"checker.entry_point"}),
        ({"checker": Checker("x", language="bash", entry_point="f")}, {"checker.entry_point"}),
        ({"checker": Checker("x", language="klingon")}, {"checker.language"}),
        ({"checker": Checker("x", files=(InputFile("answer", b""),))}, {"checker.files[0].path"}),
        ({"checker": Checker("x", limits=Limits(disk_bytes=4096))}, {"checker.limits.disk_bytes"}),
        ({"checker": Checker("x"), "comparison": Comparison.EXACT}, {"comparison"}),
        ({"checker": Checker("x", full_points=-1)}, {"checker.full_points"}),
        ({"checker": Checker("x", full_points=float("inf"))}, {"checker.full_points"}),
        ({"checker": Checker("x", entry_point="f", convention=KATTIS)}, {"checker.entry_point"}),
        (
            {"checker": Checker("x", files=(InputFile("feedback/a", b""),), convention=KATTIS)},
            {"checker.files[0].path"},
        ),
        ({"checker": Checker("x"), "interactor": Checker("x", convention=KATTIS)}, {"interactor.convention"}),
        ({"tolerance": Tolerance()}, {"tolerance"}),
        (
            {"tolerance": Tolerance(float("nan"), -1), "comparison": Comparison.FLOAT},
            {"tolerance.absolute", "tolerance.relative"},
        ),
    ],
)
async def test_every_field_that_is_not_acceptable_is_named(
    executor: ExecutorClient, more: dict[str, object], fields: set[str]
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await executor.verify("x", [CASE], **more)  # type: ignore[arg-type]
    assert {field.field for field in raised.value.fields} == fields


async def test_calls_have_no_checker(executor: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest, match="only STDIO uses it"):
        await executor.verify("x", [FunctionCase()], entry_point="f", checker=ANY_ORDER)


ENDS = "__import__('os')._exit(0)"
"""Output that ends whoever evaluates it, with the exit code that says right."""


@pytest.mark.parametrize(
    "checker",
    [
        Checker(
            "def check(given, expected, actual):\n    return eval(actual) == eval(expected)\n", entry_point="check"
        ),
        Checker("import sys\nsys.exit(eval(open('output').read()) != eval(open('answer').read()))\n"),
    ],
    ids=["function", "program"],
)
async def test_a_checker_that_is_ended_has_said_nothing(executor: ExecutorClient, checker: Checker) -> None:
    case = StdioCase(b"", b"[3, 1]")
    for output, verdict in ((ENDS, Verdict.WRONG_ANSWER), ("[3, 1.0]", Verdict.PASSED), ("[3]", Verdict.WRONG_ANSWER)):
        [found] = (await executor.verify(f"print({output!r})", [case], checker=checker)).cases
        assert (found.verdict, found.cause) == (verdict, Cause.POLICY), found.message
    [found] = (await executor.verify(f"print({ENDS!r})", [StdioCase(b"", ENDS.encode())], checker=checker)).cases
    assert (found.verdict, found.cause) == (Verdict.BROKEN_CASE, Cause.TASK)  # on the expected output too
