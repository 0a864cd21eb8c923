"""ExecuteBatch: each program for itself, results as they end, and a batch that is left leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service import (
    Cause,
    ExecutionResult,
    ExecutorClient,
    InvalidRequest,
    Limits,
    Outcome,
    Overloaded,
    Program,
)
from executor_service.core.batch import Batch
from tests.executor.servers import Server, processes_with, running, wait_for


@given(
    count=st.integers(1, 40),
    max_parallel=st.integers(1, 8),
    stop=st.booleans(),
    choices=st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=60),
)
def test_every_program_starts_once_in_order_and_never_too_many(
    count: int, max_parallel: int, stop: bool, choices: list[tuple[int, bool]]
) -> None:
    batch = Batch(count, max_parallel=max_parallel, stop_on_failure=stop)
    out = batch.start()
    started = list(out)
    failed = False
    while out:
        which, fails = choices.pop() if choices else (0, False)
        index = out.pop(which % len(out))
        if fails:
            batch.failed(index, Cause.POLICY)
            failed = True
        new = batch.handed_over(index)
        assert not (new and failed and stop)
        started += new
        out += new
        assert len(out) <= max_parallel
    assert started == list(range(len(started)))
    assert [*started, *batch.never_started()] == list(range(count))
    assert bool(batch.never_started()) <= (failed and stop)


def test_the_first_failure_gives_its_cause_to_what_never_started() -> None:
    batch = Batch(5, max_parallel=2, stop_on_failure=True)
    assert batch.start() == [0, 1]
    batch.failed(1, Cause.INFRA)
    batch.failed(0, Cause.POLICY)
    assert batch.handed_over(1) == []
    assert batch.stopped is not None
    assert (batch.stopped.index, batch.stopped.cause, list(batch.never_started())) == (1, Cause.INFRA, [2, 3, 4])


def outcomes(items: Sequence[object]) -> list[Outcome]:
    assert all(isinstance(item, ExecutionResult) for item in items), items
    return [item.outcome for item in items if isinstance(item, ExecutionResult)]


async def test_results_carry_their_index_and_come_as_they_end(executor: ExecutorClient) -> None:
    programs = ["import time; time.sleep(3); print('slow')", "print('fast')", "raise SystemExit(2)"]
    found = [(index, item) async for index, item in executor.batch(programs)]
    assert sorted(index for index, _ in found) == [0, 1, 2]
    assert found[-1][0] == 0
    by_index = dict(found)
    assert outcomes([by_index[i] for i in range(3)]) == [Outcome.FINISHED, Outcome.FINISHED, Outcome.NONZERO_EXIT]
    assert isinstance(by_index[0], ExecutionResult)
    assert by_index[0].stdout.data == b"slow\n"


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


async def test_more_programs_than_the_queue_has_places_for() -> None:
    """By default no more are queued than can run, so a large batch does not fill the queue for others."""
    with running("max_concurrent=2", "max_queued=2") as server:
        async with ExecutorClient(server.target) as executor:
            items = await executor.execute_all(["print(1)"] * 20)
            assert outcomes(list(items)) == [Outcome.FINISHED] * 20


async def test_stop_on_failure_cancels_what_has_not_started(executor: ExecutorClient) -> None:
    programs = [
        Program(code=code, request_id=f"stop-{uuid.uuid4()}") for code in ("1", "raise SystemExit(4)", "1", "1")
    ]
    items = dict([item async for item in executor.batch(programs, max_parallel=1, stop_on_failure=True)])
    found = [items[index] for index in range(4)]
    assert outcomes(found) == [Outcome.FINISHED, Outcome.NONZERO_EXIT, Outcome.CANCELLED, Outcome.CANCELLED]
    last = items[3]
    assert isinstance(last, ExecutionResult)
    assert (last.cause, last.request_id) == (Cause.POLICY, programs[3].request_id)
    assert "program 1 " in last.message
    # It never ran, so its id is free.
    again = await executor.execute("1", request_id=programs[3].request_id)
    assert (again.outcome, again.deduplicated) == (Outcome.FINISHED, False)


async def test_every_bad_field_of_every_program_is_named_before_any_runs(
    executor: ExecutorClient, server: Server
) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    programs = [
        Program(code="import time; time.sleep(60)", args=[marker]),
        Program(code=""),
        Program(code="1", limits=Limits(wall_time_s=1e9), language="cobol"),
    ]
    with pytest.raises(InvalidRequest) as caught:
        await executor.execute_all(programs)
    named = [field.field for field in caught.value.fields]
    assert named == ["executions[1].code", "executions[2].language", "executions[2].limits.wall_time_s"]
    assert not processes_with(marker)


@pytest.mark.parametrize("count", [0, 1025])
async def test_the_number_of_programs_is_bounded(executor: ExecutorClient, count: int) -> None:
    with pytest.raises(InvalidRequest, match=f"has {count} entries, must have from 1 to 1024"):
        await executor.execute_all(["1"] * count)


async def test_ids_within_a_batch_must_differ(executor: ExecutorClient) -> None:
    programs = [Program(code="1", request_id="same"), Program(code="2"), Program(code="1", request_id="same")]
    with pytest.raises(InvalidRequest, match=r"executions\[2\].request_id is 'same', which executions\[0\] has"):
        await executor.execute_all(programs)


async def test_a_program_that_can_not_be_run_is_an_error_of_its_item(executor: ExecutorClient) -> None:
    await executor.execute("print('original')", request_id="batch-taken")
    items = await executor.execute_all([Program(code="print('other')", request_id="batch-taken"), "print('fine')"])
    assert isinstance(items[0], InvalidRequest)
    assert "used for another request" in str(items[0])
    assert isinstance(items[1], ExecutionResult)
    assert items[1].ok


async def test_a_full_queue_is_an_error_of_its_item() -> None:
    with running("max_concurrent=1", "max_queued=0") as server:
        async with ExecutorClient(server.target) as executor:
            other = asyncio.create_task(executor.execute("import time; time.sleep(600)"))
            await asyncio.to_thread(wait_for, lambda: server.status().running == 1)
            items = await executor.execute_all(["1", "2"])
            assert [type(item) for item in items] == [Overloaded, Overloaded]
            other.cancel()


async def test_a_repeated_id_in_a_batch_gives_the_stored_result(executor: ExecutorClient) -> None:
    program = Program(code="import uuid; print(uuid.uuid4())", request_id=f"batch-{uuid.uuid4()}")
    [first] = await executor.execute_all([program])
    [again] = await executor.execute_all([program])
    assert isinstance(first, ExecutionResult)
    assert isinstance(again, ExecutionResult)
    assert (again.stdout, again.deduplicated) == (first.stdout, True)


async def test_leaving_a_batch_kills_all_of_it(executor: ExecutorClient, server: Server) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    long = Program(code="import time; time.sleep(600)", args=[marker])
    async with aclosing(executor.batch(["print('quick')", *[long] * 6])) as items:
        index, _ = await anext(items)
        assert index == 0
        await asyncio.to_thread(wait_for, lambda: len(processes_with(marker)) >= 3)
    await asyncio.to_thread(wait_for, lambda: not processes_with(marker))
    await asyncio.to_thread(wait_for, lambda: server.status().running == server.status().queued == 0)
