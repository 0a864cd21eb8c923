"""Results of cases as they are known: each once, while the others run, for everybody who asks."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from executor_service import (
    CaseResult,
    ExecutorClient,
    ExecutorError,
    FunctionCase,
    InvalidRequest,
    Limits,
    PytestCase,
    StdioCase,
    Verdict,
)
from executor_service import InputFile as File
from tests.executor.servers import Server, processes_with, wait_for
from tests.limiter.chaos.proxy import Proxy

CASES = [StdioCase(b"%d" % number, b"%d" % (2 * number)) for number in range(6)]
DOUBLES = "print(2 * int(input()))"


class Enough(Exception):
    """Raised by who has seen enough."""


def key(case: CaseResult) -> str:
    return case.case_id


async def test_each_case_is_told_once_and_all_of_them_at_the_end(executor: ExecutorClient) -> None:
    for code, verdicts in ((DOUBLES, {Verdict.PASSED}), ("print(0)", {Verdict.PASSED, Verdict.WRONG_ANSWER})):
        told: list[CaseResult] = []
        result = await executor.verify(code, CASES, on_case=told.append)
        assert sorted(told, key=key) == list(result.cases)
        assert {case.verdict for case in told} == verdicts


async def test_cases_are_told_while_others_run(executor: ExecutorClient) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    code = f"import time\nif input() == '0': print(0)\nelse: time.sleep(600)  # {marker}\n"
    limits = Limits(wall_time_s=100)

    def enough(case: CaseResult) -> None:
        assert (case.case_id, case.verdict) == ("0", Verdict.PASSED)
        raise Enough

    with pytest.raises(Enough):
        await executor.verify(code, CASES[:2], limits=limits, on_case=enough)
    # Leaving kills what runs.
    await asyncio.to_thread(wait_for, lambda: not processes_with(marker))


async def test_calls_and_tests_are_told_too(executor: ExecutorClient) -> None:
    told: list[CaseResult] = []
    calls = [FunctionCase((number,), 2 * number) for number in range(40)]
    result = await executor.verify("def f(x): return 2 * x", calls, entry_point="f", on_case=told.append)
    assert sorted(told, key=lambda case: int(case.case_id)) == list(result.cases)
    assert {case.value for case in told} == set(range(0, 80, 2))
    told.clear()
    tests = File(
        "test_it.py", b"from solution import f\ndef test_a(): assert f() == 1\ndef test_b(): assert f() == 2\n"
    )
    result = await executor.verify("def f(): return 1", [PytestCase()], test_files=[tests], on_case=told.append)
    assert told == list(result.cases)


async def test_what_is_not_run_is_told(executor: ExecutorClient) -> None:
    told: list[CaseResult] = []
    await executor.verify("print(0)", CASES[:3], stop_on_failure=True, on_case=told.append)
    assert [case.verdict for case in told] == [Verdict.PASSED, Verdict.WRONG_ANSWER, Verdict.NOT_RUN]


async def test_who_joins_or_comes_later_is_told_all(executor: ExecutorClient, server: Server) -> None:
    code = "import time; n = int(input()); time.sleep(n % 2); print(2 * n)"
    await asyncio.to_thread(wait_for, lambda: server.status().running == 0)
    unary = asyncio.create_task(executor.verify(code, CASES, request_id="cases-1"))
    await asyncio.to_thread(wait_for, lambda: server.status().running > 0)
    for _ in range(2):
        told: list[CaseResult] = []
        result = await executor.verify(code, CASES, request_id="cases-1", on_case=told.append)
        assert result.deduplicated
        assert sorted(told, key=key) == list(result.cases)
    assert (await unary).cases == result.cases


async def test_another_request_with_the_id_is_told_nothing(executor: ExecutorClient, server: Server) -> None:
    code = "import time; time.sleep(float(input()) / 5)"
    await asyncio.to_thread(wait_for, lambda: server.status().running == 0)
    first = asyncio.create_task(executor.verify(code, CASES, request_id="cases-2"))
    await asyncio.to_thread(wait_for, lambda: server.status().running > 0)
    told: list[CaseResult] = []
    with pytest.raises(ExecutorError):
        await executor.verify(DOUBLES, CASES, request_id="cases-2", on_case=told.append)
    assert not told
    await first


async def test_a_large_result_is_told_whole(executor: ExecutorClient) -> None:
    told: list[CaseResult] = []
    case = StdioCase(b"", b"x" * 1_000_000)
    result = await executor.verify("print('x' * 1_000_000, end='')", [case], on_case=told.append)
    assert told == list(result.cases)
    assert told[0].execution is not None
    assert len(told[0].execution.stdout.data) == 1_000_000


async def test_a_bad_field_is_named_below_verification(executor: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await executor.verify("", CASES, on_case=print)
    assert [field.field for field in caught.value.fields] == ["verification.code"]


async def test_a_connection_that_breaks_tells_none_twice(server: Server) -> None:
    told: list[str] = []
    async with Proxy(int(server.target.rpartition(":")[2])) as proxy, ExecutorClient(proxy.address) as executor:

        def tell(case: CaseResult) -> None:
            told.append(case.case_id)
            if len(told) == 2:
                proxy.reset()

        code = "import time; n = int(input()); time.sleep(n / 2); print(2 * n)"
        result = await executor.verify(code, CASES[:5], on_case=tell)
    assert sorted(told) == ["0", "1", "2", "3", "4"]
    assert result.all_passed
