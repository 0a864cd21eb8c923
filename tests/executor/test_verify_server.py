"""VerifyCode on a real server."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from executor_service import (
    AssertCase,
    Cause,
    Comparison,
    ExecutorClient,
    FunctionCase,
    InputFile,
    InvalidRequest,
    Limits,
    Outcome,
    PytestCase,
    StdioCase,
    Verdict,
)
from tests.executor.servers import Server, held, let_go, processes_with, running, wait_for
from tests.executor.test_leases import limiter_running

DOUBLE = "print(2 * int(input()))"


async def test_stdio_cases_are_compared_and_come_back_in_order(executor: ExecutorClient) -> None:
    cases = [StdioCase(b"%d\n" % n, b"%d\n" % (2 * n if n != 3 else 7), f"n{n}") for n in range(6)]
    result = await executor.verify(DOUBLE, cases)
    assert [case.case_id for case in result.cases] == [f"n{n}" for n in range(6)]
    assert [case.verdict for case in result.cases] == [Verdict.PASSED] * 3 + [Verdict.WRONG_ANSWER] + [
        Verdict.PASSED
    ] * 2
    assert (result.passed, result.all_passed, result.cause) == (5, False, Cause.POLICY)
    assert result.cases[3].execution is not None
    assert result.cases[3].execution.stdout.data == b"6\n"


async def test_a_case_without_id_has_its_index(executor: ExecutorClient) -> None:
    result = await executor.verify("print(1)", [StdioCase(b"", b"1"), StdioCase(b"", b"1")])
    assert [case.case_id for case in result.cases] == ["0", "1"]
    assert result.all_passed


async def test_limits_hold_for_each_case(executor: ExecutorClient) -> None:
    code = "n = int(input())\nwhile n: pass\nprint(n)"
    cases = [StdioCase(b"0", b"0"), StdioCase(b"1", b"1"), StdioCase(b"0", b"0")]
    result = await executor.verify(code, cases, limits=Limits(wall_time_s=1.5))
    assert [case.verdict for case in result.cases] == [Verdict.PASSED, Verdict.FAILED, Verdict.PASSED]
    assert result.cases[1].execution is not None
    assert result.cases[1].execution.outcome is Outcome.TIME_LIMIT


async def test_nothing_is_run_after_a_failure_where_asked(executor: ExecutorClient) -> None:
    cases = [StdioCase(b"", b"1"), StdioCase(b"", b"2"), StdioCase(b"", b"1"), StdioCase(b"", b"1")]
    result = await executor.verify("print(1)", cases, stop_on_failure=True)
    verdicts = [case.verdict for case in result.cases]
    assert verdicts == [Verdict.PASSED, Verdict.WRONG_ANSWER, Verdict.NOT_RUN, Verdict.NOT_RUN]
    assert result.cases[2].execution is None
    assert result.cause is Cause.POLICY


async def test_comparison_is_chosen_by_the_request(executor: ExecutorClient) -> None:
    cases = [StdioCase(b"", b"0.3")]
    verdicts = [
        (await executor.verify("print(0.1 + 0.2)", cases, comparison=comparison)).all_passed
        for comparison in (Comparison.EXACT, Comparison.WHITESPACE, Comparison.FLOAT)
    ]
    assert verdicts == [False, False, True]


async def test_the_same_request_id_is_graded_once(executor: ExecutorClient) -> None:
    code = "import random\nprint(random.random())"
    cases = [StdioCase(b"", b"0")]
    calls = [executor.verify(code, cases, request_id="verify-once") for _ in range(3)]
    results = [*await asyncio.gather(*calls), await executor.verify(code, cases, request_id="verify-once")]
    outputs = {case.execution.stdout.data for result in results for case in result.cases if case.execution}
    assert len(outputs) == 1
    assert sum(not result.deduplicated for result in results) == 1
    with pytest.raises(InvalidRequest, match="request_id"):
        await executor.verify(code, [StdioCase(b"", b"1")], request_id="verify-once")


async def test_cancelling_the_call_ends_its_cases(executor: ExecutorClient, server: Server) -> None:
    cases = [StdioCase(b"", b"")] * 50
    call = asyncio.create_task(executor.verify("while True: pass", cases, limits=Limits(wall_time_s=60)))
    await asyncio.to_thread(wait_for, lambda: server.status().running > 0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(wait_for, lambda: server.status().running == 0 and server.status().queued == 0)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"cases": [], "code": "x"}, set()),
        ({"cases": [StdioCase(b"", b"")], "code": ""}, {"code"}),
        ({"cases": [StdioCase(b"", b"")], "code": "x", "language": "klingon"}, {"language"}),
        ({"cases": [StdioCase(b"", b"x" * 2000)], "code": "x", "limits": Limits(output_bytes=1000)}, {
            "cases[0].stdio.expected_stdout"
        }),
        ({"cases": [FunctionCase()], "code": "x"}, {"entry_point"}),
        (
            {"cases": [AssertCase("f()")], "code": "x", "files": [InputFile("solution.py", b"")]},
            {"files[0].path"},
        ),
        ({"cases": [FunctionCase()], "code": "x", "entry_point": "a.b.c", "language": "bash"}, {
            "entry_point",
            "language",
        }),
        ({"cases": [AssertCase("")], "code": "x", "comparison": Comparison.EXACT, "entry_point": "f"}, {
            "cases[0].assertion.source",
            "comparison",
            "entry_point",
        }),
        ({"cases": [PytestCase("--x"), PytestCase("y" * 5000)], "code": "x", "setup_code": "y"}, {
            "cases[0].pytest.node_id",
            "cases[1].pytest.node_id",
            "setup_code",
            "test_files",
        }),
        ({
            "cases": [PytestCase()],
            "code": "x",
            "test_files": [InputFile("../x", b""), InputFile("solution.py", b"")],
        }, {
            "test_files[0].path",
            "test_files[1].path",
        }),
        ({"cases": [PytestCase(), PytestCase()], "code": "x", "test_files": [InputFile("t.py", b"")]}, {"cases"}),
        ({"cases": [StdioCase(b"", b"", "i" * 200)], "code": "x", "test_files": [InputFile("x", b"")]}, {
            "cases[0].case_id",
            "test_files",
        }),
    ],
)  # fmt: skip
async def test_every_bad_field_is_named(executor: ExecutorClient, arguments: dict[str, Any], fields: set[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await executor.verify(**arguments)
    assert {error.field for error in caught.value.fields} == fields


async def test_a_value_that_is_not_plain_is_refused_by_the_client(executor: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest, match="object is not plain data"):
        await executor.verify("x", [FunctionCase((object(),), 1)], entry_point="f")


async def test_many_problems_are_counted_and_not_listed(executor: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest, match="84 more problems") as caught:
        await executor.verify("x", [AssertCase("")] * 100)
    assert len(caught.value.fields) == 17


async def test_values_of_all_kinds_go_to_a_function_and_come_back(executor: ExecutorClient) -> None:
    value: list[Any] = [
        None,
        True,
        -(2**70),
        1.5,
        float("inf"),
        "é\ud800",
        b"\xff",
        (1, [2]),
        {3, "x"},
        {"k": (), 4: {}},
    ]
    cases = [FunctionCase((value,), value), FunctionCase((), value, {"x": value}), FunctionCase((value,), 0)]
    result = await executor.verify("def same(x):\n    return x\n", cases, entry_point="same")
    assert [case.passed for case in result.cases] == [True, True, False]
    assert result.cases[2].value == value
    assert result.cases[2].verdict is Verdict.WRONG_ANSWER


async def test_a_large_value_is_judged_and_not_returned(executor: ExecutorClient) -> None:
    cases = [FunctionCase((), [0] * 300_000)]
    result = await executor.verify("def f():\n    return [0] * 300_000\n", cases, entry_point="f")
    assert result.all_passed
    assert result.cases[0].actual is None


async def test_a_broken_case_is_the_tasks_fault_and_the_others_count(executor: ExecutorClient) -> None:
    cases = [AssertCase("assert f() == 1"), AssertCase("assert f( == 1"), AssertCase("assert f() == 2")]
    result = await executor.verify("def f():\n    return 1\n", cases)
    assert [case.verdict for case in result.cases] == [Verdict.PASSED, Verdict.BROKEN_CASE, Verdict.WRONG_ANSWER]
    assert [case.cause for case in result.cases] == [Cause.POLICY, Cause.TASK, Cause.POLICY]
    assert result.cause is Cause.TASK


async def test_limits_of_a_function_are_kept(executor: ExecutorClient) -> None:
    cases = [
        FunctionCase(("time",), 1),
        FunctionCase(("memory",), 1),
        FunctionCase(("cpu",), 1),
        FunctionCase(("",), 1),
    ]
    code = (
        "import time\ndef f(what):\n    if what == 'time': time.sleep(60)\n    x = []\n"
        "    while what == 'memory': x.append(b'x' * (1 << 20))\n    while what == 'cpu': pass\n    return 1\n"
    )
    limits = Limits(wall_time_s=6, cpu_time_s=1, memory_bytes=256 << 20)
    result = await executor.verify(code, cases, entry_point="f", limits=limits)
    outcomes = [case.execution.outcome for case in result.cases if case.execution]
    assert outcomes == [Outcome.TIME_LIMIT, Outcome.MEMORY_LIMIT, Outcome.CPU_LIMIT, Outcome.FINISHED]
    assert [case.cause for case in result.cases] == [Cause.POLICY] * 4


async def test_each_case_holds_a_lease_of_its_own() -> None:
    with (
        limiter_running("buckets.code.max_in_flight=2", "buckets.code.max_queued=20") as limiter,
        running(f"limiter={limiter.target}", "max_concurrent=8", "name=verifier") as server,
    ):
        wait_for(lambda: server.status().limiter.valid)
        async with ExecutorClient(server.target) as executor:
            code = "def f(n):\n    import time\n    time.sleep(1)\n    return n\n"
            cases = [FunctionCase((n,), n) for n in range(6)]
            call = asyncio.create_task(executor.verify(code, cases, entry_point="f"))
            await asyncio.to_thread(wait_for, lambda: limiter.bucket().held == 2)
            assert limiter.bucket().queued <= 2
            assert (await call).all_passed
        wait_for(limiter.idle)


async def test_a_server_that_ends_says_which_cases_it_has_not_run() -> None:
    with running("max_concurrent=1", "drain_grace_s=20") as server:
        async with ExecutorClient(server.target) as executor:
            marker, code = held()
            call = asyncio.create_task(executor.verify(code, [StdioCase(b"", b"begun\ndone")] * 6))
            await asyncio.to_thread(wait_for, lambda: processes_with(marker))
            server.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(wait_for, lambda: server.status().draining)
            await asyncio.to_thread(let_go, marker)
            result = await call
    assert result.cases[0].verdict is Verdict.PASSED
    assert {(case.verdict, case.cause) for case in result.cases[1:]} == {(Verdict.ERROR, Cause.INFRA)}
    assert result.cause is Cause.INFRA
