"""Sessions that write far beyond their output limit, in a cell and between cells."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from executor_service import Cause, ExecutorClient, Limits, Outcome, SessionNotFound
from tests.executor.servers import held, let_go, processes_with, wait_for

LITTLE = Limits(output_bytes=1000, wall_time_s=60)
FLOOD = "while True: print('x' * 10_000)"


async def test_a_cell_that_floods_ends_its_session(executor: ExecutorClient) -> None:
    async with executor.session(limits=LITTLE) as session:
        result = await session.run(FLOOD)
        assert (result.outcome, result.cause, result.exit_code) == (Outcome.OUTPUT_LIMIT, Cause.POLICY, 137)
        assert (len(result.stdout.data), result.stdout.truncated) == (1000, True)
        assert result.wall_time_s < 30
        with pytest.raises(SessionNotFound, match="output limit") as caught:
            await session.run("1")
        assert caught.value.cause is Cause.POLICY


async def test_a_branch_that_floods_between_cells_ends_alone(executor: ExecutorClient) -> None:
    async with executor.session(limits=LITTLE, owner="flood") as session:
        await session.run("x = 'kept'")
        (branch,) = await session.branch(1)
        await branch.run("import subprocess; subprocess.Popen(['yes'])")
        while branch.session_id in {info.session_id for info in await executor.list_sessions()}:
            await asyncio.sleep(0.05)
        with pytest.raises(SessionNotFound, match="output limit"):
            await branch.run("1")
        assert [display.text for display in (await session.run("x")).displays] == ["'kept'"]


async def test_little_is_kept_of_what_is_written_between_cells(executor: ExecutorClient) -> None:
    """A server has many sessions that rest."""
    marker, (pause, _) = uuid.uuid4().hex, held()
    async with executor.session(limits=Limits(output_bytes=8 << 20)) as session:
        command = ["sh", "-c", f"sleep $PAUSE; yes | head -c 4000000; : {marker}"]
        code = f"Popen({command}, env=os.environ | {{'PAUSE': '{pause}'}}, stderr=DEVNULL)"
        await session.run(f"import os; from subprocess import DEVNULL, Popen; process = {code}")
        await asyncio.to_thread(let_go, pause)
        await asyncio.to_thread(wait_for, lambda: processes_with(marker) == [])
        output = (await session.run("1")).stdout
        assert (len(output.data), output.total_bytes, output.truncated) == (1 << 20, 4_000_000, True)


async def test_a_program_with_displays_that_floods_is_ended(executor: ExecutorClient) -> None:
    result = await executor.execute(FLOOD, display=True, limits=LITTLE)
    assert (result.outcome, result.cause, result.exit_code) == (Outcome.OUTPUT_LIMIT, Cause.POLICY, 137)
