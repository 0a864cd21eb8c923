"""StreamExecution: output while it is written, the same bytes as in the result, and nobody held up by a slow reader."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service import (
    ExecutionResult,
    ExecutorClient,
    InvalidRequest,
    Limits,
    Outcome,
    OutputChunk,
    Program,
    Stream,
)
from executor_service.runs.output import OutputLog, OutputReader
from executor_service.v1 import executor_pb2 as pb
from executor_service.v1 import executor_pb2_grpc
from fairbox.net.channels import open_channel
from tests.executor.servers import Server, held, let_go, processes_with, wait_for

if TYPE_CHECKING:
    from executor_service.v1.executor_pb2_grpc import ExecutorServiceAsyncStub

SLOWLY = """
import sys, time
for i in range(3):
    print('out', i, flush=True)
    print('err', i, file=sys.stderr, flush=True)
    time.sleep(0.3)
"""


async def collect(
    events: AsyncIterator[OutputChunk | ExecutionResult],
) -> tuple[dict[Stream, bytes], ExecutionResult]:
    """The bytes of each stream, and the result, which must be the last event."""
    got = dict.fromkeys(Stream, b"")
    results: list[ExecutionResult] = []
    async for event in events:
        if isinstance(event, OutputChunk):
            assert not results, "a chunk after the result"
            assert event.data
            got[event.stream] += event.data
        else:
            results.append(event)
    assert len(results) == 1
    return got, results[0]


@given(st.lists(st.tuples(st.sampled_from(Stream), st.binary(max_size=40), st.integers(0, 30))))
def test_a_reader_gets_every_byte_once_and_in_order(steps: list[tuple[Stream, bytes, int]]) -> None:
    log, got, written = OutputLog(), dict.fromkeys(Stream, b""), dict.fromkeys(Stream, b"")
    reader = OutputReader(log)
    for stream, data, most in steps:
        log.append(stream, data)
        written[stream] += data
        if most and (piece := reader.take(most)):
            assert 0 < len(piece[1]) <= most
            got[piece[0]] += piece[1]
    while piece := reader.take(7):
        got[piece[0]] += piece[1]
    assert got == written
    assert {stream: reader.taken(stream) for stream in Stream} == {stream: len(data) for stream, data in got.items()}


async def test_output_arrives_while_the_program_runs(executor: ExecutorClient, server: Server) -> None:
    code = "import time; print('first', flush=True); time.sleep(600)"
    marker = f"marker-{uuid.uuid4().hex}"
    async with aclosing(executor.stream(Program(code=code, args=[marker]))) as events:
        async for event in events:
            assert event == OutputChunk(Stream.STDOUT, b"first\n")
            assert processes_with(marker), "the chunk came after the program had ended"
            break
    # Leaving the stream kills the program.
    await asyncio.to_thread(wait_for, lambda: not processes_with(marker))


async def test_chunks_together_are_the_output_of_the_result(executor: ExecutorClient) -> None:
    got, result = await collect(executor.stream(SLOWLY))
    assert got[Stream.STDOUT] == result.stdout.data == b"out 0\nout 1\nout 2\n"
    assert got[Stream.STDERR] == result.stderr.data == b"err 0\nerr 1\nerr 2\n"
    assert (result.outcome, result.deduplicated) == (Outcome.FINISHED, False)


async def test_a_program_without_output_has_only_a_result(executor: ExecutorClient) -> None:
    got, result = await collect(executor.stream("import sys; sys.exit(3)"))
    assert got == {Stream.STDOUT: b"", Stream.STDERR: b""}
    assert (result.outcome, result.exit_code) == (Outcome.NONZERO_EXIT, 3)


async def test_nothing_beyond_the_output_limit_is_sent(executor: ExecutorClient) -> None:
    code = "import sys\nfor _ in range(100): sys.stdout.write('x' * 10_000)\n"
    got, result = await collect(executor.stream(Program(code=code, limits=Limits(output_bytes=12_345))))
    assert got[Stream.STDOUT] == result.stdout.data == b"x" * 12_345
    assert (result.stdout.total_bytes, result.stdout.truncated) == (1_000_000, True)


async def test_bytes_that_are_no_text_arrive_as_they_are(executor: ExecutorClient) -> None:
    code = "import os\nfor i in range(256): os.write(1, bytes([i]))\n"
    got, _ = await collect(executor.stream(code))
    assert got[Stream.STDOUT] == bytes(range(256))


async def test_a_reader_that_stands_still_does_not_hold_the_program_up(server: Server) -> None:
    """The program writes far more than connection and pipes hold; it ends although nobody reads."""
    size = 8 << 20
    code = f"import sys\nfor _ in range({size >> 16}): sys.stdout.write('y' * 65536)\n"
    finished = server.status().outcomes["FINISHED"]
    async with open_channel(server.target) as channel:
        stub = cast("ExecutorServiceAsyncStub", executor_pb2_grpc.ExecutorServiceStub(channel))
        execution = pb.ExecuteCodeRequest(code=code, limits=pb.Limits(output_bytes=size))
        call = stub.StreamExecution(pb.StreamExecutionRequest(execution=execution), timeout=100)
        await call.wait_for_connection()

        def ended() -> bool:
            return server.status().outcomes["FINISHED"] > finished

        await asyncio.to_thread(wait_for, ended)
        received = 0
        async for response in call:
            if response.HasField("stdout"):
                received += len(response.stdout)
            else:
                assert response.result.outcome == pb.OUTCOME_FINISHED
                assert len(response.result.stdout.data) == size
        assert received == size


async def test_a_repeated_id_gives_the_stored_output_as_chunks(executor: ExecutorClient) -> None:
    program = Program(code="import uuid, sys; print(uuid.uuid4()); print('e', file=sys.stderr)", request_id="stream-1")
    first, result = await collect(executor.stream(program))
    again, repeated = await collect(executor.stream(program))
    assert first == again
    assert (result.deduplicated, repeated.deduplicated) == (False, True)
    # Calls of both kinds share their ids.
    assert (await executor.execute(program.code, request_id="stream-1")).stdout.data == first[Stream.STDOUT]


async def test_a_stream_that_joins_a_run_begins_at_its_first_byte(executor: ExecutorClient) -> None:
    marker, code = held()
    unary = asyncio.create_task(executor.execute(code, request_id="stream-2"))
    await asyncio.to_thread(wait_for, lambda: processes_with(marker))
    events = executor.stream(Program(code=code, request_id="stream-2"))
    chunks = [await anext(events)]
    await asyncio.to_thread(let_go, marker)
    chunks += [event async for event in events]
    result = chunks.pop()
    assert isinstance(result, ExecutionResult)
    assert result.deduplicated
    assert b"".join(event.data for event in chunks if isinstance(event, OutputChunk)) == b"begun\ndone\n"
    assert len(chunks) > 1, "the output came in one piece, after the end"
    assert (await unary).stdout.data == result.stdout.data


async def test_leaving_a_joined_stream_leaves_the_run_alone(executor: ExecutorClient) -> None:
    marker, code = held()
    unary = asyncio.create_task(executor.execute(code, request_id="stream-3"))
    await asyncio.to_thread(wait_for, lambda: processes_with(marker))
    async with aclosing(executor.stream(Program(code=code, request_id="stream-3"))) as events:
        assert await anext(events) == OutputChunk(Stream.STDOUT, b"begun\n")
    await executor.status()  # the server hears that the stream was left before this
    await asyncio.to_thread(let_go, marker)
    assert (await unary).stdout.data == b"begun\ndone\n"


async def test_a_bad_field_is_named_below_execution(executor: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await collect(executor.stream(Program(code="", limits=Limits(wall_time_s=1e9))))
    assert [field.field for field in caught.value.fields] == ["execution.code", "execution.limits.wall_time_s"]
