"""VerifyCode of a candidate that is compiled: the result says once what the compiler said."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from executor_service import Cause, ExecutorClient, Limits, Outcome, StdioCase, Verdict, VerifyResult
from executor_service.model import Compilation
from tests.executor.servers import Server

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]
LIMITS = Limits(wall_time_s=30, compile_time_s=100)
DOUBLE = """#warning "this is said once"
#include <cstdio>
int main() { int x; std::scanf("%d", &x); std::printf("%d\\n", 2 * x); }"""
CASES = [StdioCase(b"%d" % x, b"%d" % (2 * x)) for x in range(6)]


@pytest.fixture(scope="module")
def server(compiling: Server) -> Server:
    return compiling


def compilations(result: VerifyResult) -> list[Compilation]:
    """Compilations of the cases."""
    found = [case.execution.compilation for case in result.cases if case.execution and case.execution.compilation]
    assert len(found) == len(result.cases)
    return found


async def test_what_the_compiler_said_is_there_once(executor: ExecutorClient) -> None:
    result = await executor.verify(DOUBLE, CASES, language="cpp", limits=LIMITS)
    assert result.all_passed
    said = result.compilation
    assert said is not None
    assert (said.outcome, said.exit_code, said.cached, said.stderr.truncated) == (Outcome.FINISHED, 0, False, False)
    assert "this is said once" in said.stderr.text
    assert said.wall_time_s > 0
    for each in compilations(result):
        assert (each.outcome, each.stderr.data, each.stderr.truncated) == (Outcome.FINISHED, b"", True)
        assert each.stderr.total_bytes == said.stderr.total_bytes


async def test_a_compile_error_fails_every_case_and_is_shown(executor: ExecutorClient) -> None:
    result = await executor.verify("int main() { return nothing; }", CASES, language="cpp", limits=LIMITS)
    assert (result.passed, result.cause) == (0, Cause.POLICY)
    assert {case.verdict for case in result.cases} == {Verdict.FAILED}
    assert "compiling failed" in result.cases[-1].message
    assert result.compilation is not None
    assert (result.compilation.outcome, result.compilation.exit_code) == (Outcome.NONZERO_EXIT, 1)
    assert "was not declared in this scope" in result.compilation.stderr.text
    assert {each.outcome for each in compilations(result)} == {Outcome.NONZERO_EXIT}


async def test_a_repeated_request_has_it_too(executor: ExecutorClient) -> None:
    code = DOUBLE + "// again"
    request_id = "compiled-again"
    first = await executor.verify(code, CASES[:1], language="cpp", limits=LIMITS, request_id=request_id)
    again = await executor.verify(code, CASES[:1], language="cpp", limits=LIMITS, request_id=request_id)
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert first.compilation == again.compilation is not None


async def test_cases_compiled_before_say_so(executor: ExecutorClient) -> None:
    code = DOUBLE + "// twice"
    results = await asyncio.gather(*(executor.verify(code, CASES[:2], language="cpp", limits=LIMITS) for _ in range(2)))
    later = await executor.verify(code, CASES[:2], language="cpp", limits=LIMITS)
    said = [result.compilation.cached for result in (*results, later) if result.compilation]
    assert sorted(said[:2]) == [False, True]
    assert said[2] is True


async def test_a_language_that_is_not_compiled_has_none(executor: ExecutorClient) -> None:
    result = await executor.verify("print(2 * int(input()))", CASES[:1])
    assert (result.all_passed, result.compilation) == (True, None)
