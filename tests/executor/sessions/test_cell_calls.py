"""Cells by the calls that are not ExecuteCode: streamed, in a batch, and under a lease that lapses."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from executor_service import (
    Cause,
    ExecutionResult,
    ExecutorClient,
    Limits,
    Outcome,
    OutputChunk,
    Program,
    Session,
    SessionNotFound,
    Stream,
)
from tests.executor.servers import held, let_go, processes_with, running, wait_for
from tests.executor.test_leases import limiter_running

WRITER = """
import subprocess, sys
code = "import os, time\\nn = 0\\nwhile True:\\n    os.write(1, b'%d\\\\n' % n); n += 1; time.sleep(0.0002)"
process = subprocess.Popen([sys.executable, "-c", code])
"""
"""Leaves a process that writes numbers."""


async def streamed(executor: ExecutorClient, program: Program) -> tuple[dict[Stream, bytes], ExecutionResult, int]:
    """The bytes of each stream, the result, and the number of chunks before it."""
    got, chunks = dict.fromkeys(Stream, b""), 0
    async for event in executor.stream(program):
        if isinstance(event, OutputChunk):
            got[event.stream] += event.data
            chunks += 1
        else:
            return got, event, chunks
    raise AssertionError("a stream without a result")


async def test_the_output_of_a_cell_is_streamed_while_it_runs(executor: ExecutorClient, session: Session) -> None:
    await session.run("x = 20")
    marker, waits = held()
    code = f"import sys\n{waits}\nprint('e', file=sys.stderr)\nx + 1"
    events = executor.stream(Program(code=code, session_id=session.session_id))
    chunks = [await anext(events)]
    assert chunks == [OutputChunk(Stream.STDOUT, b"begun\n")]
    await asyncio.to_thread(let_go, marker)
    chunks += [event async for event in events]
    result = chunks.pop()
    assert isinstance(result, ExecutionResult)
    got = dict.fromkeys(Stream, b"")
    for chunk in chunks:
        assert isinstance(chunk, OutputChunk)
        got[chunk.stream] += chunk.data
    assert (result.outcome, result.cell, [display.text for display in result.displays]) == (Outcome.FINISHED, 2, ["21"])
    assert (got[Stream.STDOUT], got[Stream.STDERR]) == (b"begun\ndone\n", b"e\n")
    assert (result.stdout.data, result.stderr.data) == (got[Stream.STDOUT], got[Stream.STDERR])


async def test_a_streamed_cell_that_fails_or_is_late_ends_with_its_result(
    executor: ExecutorClient, session: Session
) -> None:
    late = Program(
        code="print('so far', flush=True)\nwhile True: pass",
        session_id=session.session_id,
        limits=Limits(wall_time_s=0.5),
    )
    got, result, _ = await streamed(executor, late)
    assert (result.outcome, result.exit_code) == (Outcome.TIME_LIMIT, 130)
    assert got[Stream.STDOUT] == b"so far\n" == result.stdout.data
    assert b"KeyboardInterrupt" in got[Stream.STDERR]
    got, result, _ = await streamed(executor, Program(code="1 / 0", session_id=session.session_id))
    assert result.outcome is Outcome.NONZERO_EXIT
    assert got[Stream.STDERR] == result.stderr.data
    with pytest.raises(SessionNotFound, match="is not known here"):
        await streamed(executor, Program(code="1", session_id=f"{session.session_id}x"))


async def test_what_is_streamed_is_what_the_result_has_whoever_else_writes(
    executor: ExecutorClient, session: Session
) -> None:
    """A process that an earlier cell has left goes on writing at the very moment in which a cell ends."""
    await session.run(WRITER)
    whole, cells, deadline = b"", 0, time.monotonic() + 60
    while cells < 60 or whole.count(b"\n") - cells < 200:
        assert time.monotonic() < deadline, "the other process writes nothing"
        got, result, _ = await streamed(executor, Program(code="print('-')", session_id=session.session_id))
        assert got[Stream.STDOUT] == result.stdout.data
        whole, cells = whole + result.stdout.data, cells + 1
    numbers = [int(line) for line in whole.replace(b"-\n", b"").splitlines()[:-1]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_leaving_the_stream_of_a_cell_interrupts_it_and_keeps_the_state(
    executor: ExecutorClient, session: Session
) -> None:
    code = "x = 'set'\nprint('begun', flush=True)\nimport time; time.sleep(600)"
    events = executor.stream(Program(code=code, session_id=session.session_id))
    assert await anext(events) == OutputChunk(Stream.STDOUT, b"begun\n")
    await events.aclose()
    assert [display.text for display in (await session.run("x")).displays] == ["'set'"]


async def test_cells_in_a_batch_run_one_after_the_other_among_programs(
    executor: ExecutorClient, session: Session
) -> None:
    code = "seen = globals().get('seen', 0) + 1; seen"
    cells = [Program(code=code, session_id=session.session_id) for _ in range(2)]
    items = await executor.execute_all([*cells, "print('program')"])
    results = [item for item in items if isinstance(item, ExecutionResult)]
    assert [result.outcome for result in results] == [Outcome.FINISHED] * 3
    assert sorted(result.cell for result in results) == [0, 1, 2]
    assert sorted(result.displays[0].text for result in results[:2]) == ["1", "2"]


async def test_errors_of_sessions_among_many_are_what_a_call_would_raise(
    executor: ExecutorClient, session: Session
) -> None:
    async with executor.session() as gone, executor.session() as dead:
        await dead.run("import os; os._exit(3)")
        await gone.delete()
        ended = [Program(code="1", session_id=each.session_id) for each in (gone, dead)]
        first, second, third = await executor.execute_all([*ended, Program(code="1", session_id="other-server~x")])
    assert isinstance(first, SessionNotFound)
    assert isinstance(second, SessionNotFound)
    assert isinstance(third, SessionNotFound)
    assert [each.cause for each in (first, second, third)] == [Cause.INFRA, Cause.POLICY, Cause.INFRA]
    assert "was deleted" in str(first)
    assert "exited with code 3" in str(second)
    assert "belongs to server 'other-server'" in str(third)


async def test_a_lease_that_lapses_while_a_cell_runs_ends_its_session() -> None:
    """Killed and not interrupted: another may hold the token from this moment on."""
    with limiter_running() as limiter:
        settings = (f"limiter={limiter.target}", "limiter_timeout_s=3", "name=lonely", "max_concurrent=4")
        with running(*settings) as server:
            async with ExecutorClient(server.target) as executor, executor.session(owner="a") as session:
                (branch,) = await session.branch(1)
                code = "import subprocess\nprint('begun', flush=True)\nsubprocess.run(['sleep', '29' + '8.2468'])"
                call = asyncio.create_task(session.run(code))
                await asyncio.to_thread(wait_for, lambda: processes_with("298.2468", below=server.pid))
                limiter.process.send_signal(signal.SIGSTOP)
                result = await call
                assert (result.outcome, result.cause, result.exit_code) == (Outcome.CANCELLED, Cause.INFRA, 137)
                assert result.stdout.data == b"begun\n"
                assert "no longer vouches" in result.message
                # Killed, it dies when it gets a processor.
                await asyncio.to_thread(wait_for, lambda: not processes_with("298.2468", below=server.pid))
                limiter.process.send_signal(signal.SIGCONT)
                await asyncio.to_thread(wait_for, lambda: server.status().limiter.valid)
                with pytest.raises(SessionNotFound, match="no longer vouches for the lease") as caught:
                    await session.run("1")
                assert caught.value.cause is Cause.INFRA
                # What rested held no lease, and lives.
                assert (await branch.run("1")).ok
                async with executor.session() as another:
                    assert (await another.run("1")).ok
                await asyncio.to_thread(wait_for, limiter.idle)
