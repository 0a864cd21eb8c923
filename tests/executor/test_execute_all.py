"""`execute_all`: each program by a call of its own, results in order, and nothing is left behind by who leaves."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Sequence

import pytest

from executor_service import ExecutionResult, ExecutorClient, InvalidRequest, Outcome, Program
from tests.executor.servers import Server, processes_with, wait_for


def outcomes(items: Sequence[object]) -> list[Outcome]:
    assert all(isinstance(item, ExecutionResult) for item in items), items
    return [item.outcome for item in items if isinstance(item, ExecutionResult)]


async def test_a_list_in_the_order_of_the_programs(executor: ExecutorClient) -> None:
    items = await executor.execute_all([f"print({i})" for i in range(12)])
    assert [item.stdout.data for item in items if isinstance(item, ExecutionResult)] == [b"%d\n" % i for i in range(12)]


async def test_max_parallel_holds(executor: ExecutorClient) -> None:
    """Each program says when it ran; no two spans overlap."""
    code = "import time; a = time.monotonic(); time.sleep(0.1); print(a, time.monotonic())"
    items = await executor.execute_all([code] * 4, max_parallel=1)
    spans = sorted(
        tuple(float(word) for word in item.stdout.text.split()) for item in items if isinstance(item, ExecutionResult)
    )
    assert len(spans) == 4
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    with pytest.raises(ValueError, match="max_parallel is 0, must be at least 1"):
        await executor.execute_all([code], max_parallel=0)


async def test_no_programs_are_no_results(executor: ExecutorClient) -> None:
    assert await executor.execute_all([]) == []


async def test_a_program_that_can_not_be_run_is_an_error_of_its_item(executor: ExecutorClient) -> None:
    await executor.execute("print('original')", request_id="batch-taken")
    programs: list[Program | str] = [Program(code="print('other')", request_id="batch-taken"), "print('fine')", ""]
    first, second, third = await executor.execute_all(programs)
    assert isinstance(first, InvalidRequest)
    assert "used for another request" in str(first)
    assert outcomes([second]) == [Outcome.FINISHED]
    assert isinstance(third, InvalidRequest)
    assert [field.field for field in third.fields] == ["code"]


async def test_leaving_kills_all_of_it(executor: ExecutorClient, server: Server) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    long = Program(code="import time; time.sleep(600)", args=[marker])
    call = asyncio.create_task(executor.execute_all([long] * 6))
    await asyncio.to_thread(wait_for, lambda: len(processes_with(marker)) >= 3)
    call.cancel()
    await asyncio.to_thread(wait_for, lambda: not processes_with(marker))
    await asyncio.to_thread(wait_for, lambda: server.status().running == server.status().queued == 0)
