"""VerifyCode where candidate or check write far beyond the output limit: each is ended, and not by its time limit."""

from __future__ import annotations

import pytest

from executor_service import (
    AssertCase,
    CaseResult,
    Cause,
    ExecutorClient,
    FunctionCase,
    Limits,
    Outcome,
    Verdict,
)
from executor_service.grading.model import Case

LIMITS = Limits(wall_time_s=60, output_bytes=1000)
FLOOD = "    while True: print('x' * 10_000)\n"
BACKGROUND = """import subprocess
process = subprocess.Popen(['yes'])
def f(): return 1
def gone(): return process.poll()
"""
"""Answers, and leaves a process that floods while nobody asks."""


async def judged(executor: ExecutorClient, code: str, case: Case, **request: object) -> CaseResult:
    result = await executor.verify(code, [case], limits=LIMITS, **request)  # type: ignore[arg-type]
    [found] = result.cases
    return found


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_function_that_floods_is_ended(executor: ExecutorClient, stream: str) -> None:
    code = f"import sys\ndef f():\n    while True: print('x' * 10_000, file=sys.{stream})\n"
    found = await judged(executor, code, FunctionCase((), 1), entry_point="f")
    assert (found.verdict, found.cause) == (Verdict.FAILED, Cause.POLICY)
    assert "wrote far more than 1000 bytes" in found.message
    assert found.execution is not None
    assert found.execution.outcome is Outcome.OUTPUT_LIMIT
    output = getattr(found.execution, stream)
    assert (len(output.data), output.truncated) == (1000, True)
    assert found.execution.wall_time_s < 30


async def test_a_candidate_that_floods_as_it_is_loaded_is_ended(executor: ExecutorClient) -> None:
    found = await judged(executor, f"if True:\n{FLOOD}", AssertCase("assert f() == 1"))
    assert (found.verdict, found.cause) == (Verdict.FAILED, Cause.POLICY)
    assert found.execution is not None
    assert found.execution.outcome is Outcome.OUTPUT_LIMIT


async def test_a_candidate_that_floods_while_nobody_asks_does_not_answer_again(executor: ExecutorClient) -> None:
    check = "import time\nassert f() == 1\nfor _ in range(300):\n    assert gone() is None\n    time.sleep(0.1)"
    found = await judged(executor, BACKGROUND, AssertCase(check))
    assert (found.verdict, found.cause) == (Verdict.FAILED, Cause.POLICY)
    assert "wrote far more than" in found.message
    assert found.execution is not None
    assert found.execution.outcome is Outcome.OUTPUT_LIMIT


async def test_a_check_that_was_content_before_stays_so_and_the_end_is_told(executor: ExecutorClient) -> None:
    later = "import subprocess\ndef f():\n    subprocess.Popen(['sh', '-c', 'sleep 2; exec yes'])\n    return 1"
    found = await judged(executor, later, AssertCase("import time\nassert f() == 1\ntime.sleep(7)"))
    assert (found.verdict, found.cause) == (Verdict.PASSED, Cause.POLICY)
    assert found.execution is not None
    assert found.execution.outcome is Outcome.OUTPUT_LIMIT


@pytest.mark.parametrize(
    ("before", "verdict", "cause"),
    [("", Verdict.BROKEN_CASE, Cause.TASK), ("f()\n", Verdict.FAILED, Cause.POLICY)],
    ids=["before it asked", "after"],
)
async def test_a_check_that_floods_is_ended(
    executor: ExecutorClient, before: str, verdict: Verdict, cause: Cause
) -> None:
    found = await judged(executor, "def f(): return 1", AssertCase(f"{before}if True:\n{FLOOD}"))
    assert (found.verdict, found.cause) == (verdict, cause)
    assert "OUTPUT_LIMIT" in found.message
