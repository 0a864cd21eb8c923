"""A server that hangs keeps the limit all the same: what runs under its leases is dead when the limiter frees them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor_service import Cause, ExecutorClient, FunctionCase, Limits, Outcome, SessionNotFound
from tests.executor.levels import EXTREMES, Level
from tests.executor.servers import Server, processes_with, wait_for
from tests.executor.test_leases import Limiter, limiter_running

LIVES = "import subprocess\nsubprocess.run(['sleep', '{}'])\n"
MINUTES = Limits(wall_time_s=120.0)


@pytest.fixture(scope="module")
def limiter() -> Iterator[Limiter]:
    with limiter_running("buckets.code.max_in_flight=4", "executor_ttl_s=2") as started:
        yield started


@pytest.fixture(scope="module", params=EXTREMES)
def server(limiter: Limiter, request: pytest.FixtureRequest) -> Iterator[Server]:
    level: Level = request.param
    with level.running(f"limiter={limiter.target}") as started:
        wait_for(lambda: started.status().limiter.valid)
        yield started


def killed(pid: int) -> bool:
    """Says whether SIGKILL is pending: the process runs no more, but has not yet had a processor to end on."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(each >> signal.SIGKILL - 1 & 1 for each in pending)


def lateness(alive: list[int]) -> str:
    """Time that they live on, at most 2 s, and where they and the processes above them were."""
    where = [line for pid in alive for line in _ancestry(pid)]
    seen = time.monotonic()
    while time.monotonic() < seen + 2 and not all(killed(pid) for pid in alive):
        time.sleep(0.001)
    return f"{time.monotonic() - seen:.3f} s more; load {os.getloadavg()[0]:.1f}; {'; '.join(where)}"


def _ancestry(pid: int) -> Iterator[str]:
    """State, kernel function and flags of a process and of two above it: its interpreter and the init."""
    for _ in range(3):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            wait = Path(f"/proc/{pid}/wchan").read_text()
        except OSError as error:
            yield f"{pid}: {error.strerror}"
            return
        yield f"{pid}: state {stat[0]} in {wait} flags {int(stat[6]):#x} major faults {stat[9]}"
        pid = int(stat[1])


async def stopped_until_freed(server: Server, limiter: Limiter, common: str) -> None:
    """Stops the server while one of each kind runs, until the limiter has given their leases up; then lets it go on."""
    await asyncio.to_thread(wait_for, lambda: len(running(common)) == limiter.bucket().bound == len(KINDS))
    os.kill(server.pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 30
        while limiter.bucket().held:
            assert time.monotonic() < deadline, "the limiter waits for ever"
            await asyncio.sleep(0.005)
        alive = [pid for pid in processes_with(common) if not killed(pid)]
        assert not alive, f"{running(common)} run, whose tokens somebody else may have: {lateness(alive)}"
    finally:
        os.kill(server.pid, signal.SIGCONT)


def running(common: str) -> list[str]:
    """Kinds of those of `KINDS` that run."""
    return [what.__name__ for number, what in enumerate(KINDS) if processes_with(f"{common}{number}")]


async def program(executor: ExecutorClient, code: str) -> None:
    result = await executor.execute(code, limits=MINUTES)
    assert (result.outcome, result.cause) == (Outcome.CANCELLED, Cause.INFRA), result
    assert "no longer vouches for the lease" in result.message


async def cell(executor: ExecutorClient, code: str) -> None:
    async with executor.session() as session:
        await session.run("x = 1")
        result = await session.run(code, limits=MINUTES)
        assert (result.outcome, result.cause) == (Outcome.CANCELLED, Cause.INFRA), result
        with pytest.raises(SessionNotFound, match="no longer vouches for the lease"):
            await session.run("x")


async def graded(executor: ExecutorClient, code: str) -> None:
    result = await executor.verify(
        f"{code}\ndef f():\n    return 1\n", [FunctionCase((), 1)], entry_point="f", limits=MINUTES
    )
    assert [each.cause for each in result.cases] == [Cause.INFRA], result


KINDS = (program, cell, graded)


async def test_what_runs_is_dead_when_the_limiter_frees_its_token(server: Server, limiter: Limiter) -> None:
    common = f"600.{uuid.uuid4().int % 10**9:09d}"  # seconds that nobody else sleeps tell a program from outside
    async with ExecutorClient(server.target) as executor, asyncio.TaskGroup() as tasks:
        for number, what in enumerate(KINDS):
            tasks.create_task(what(executor, LIVES.format(f"{common}{number}")))
        await stopped_until_freed(server, limiter, common)
        await asyncio.to_thread(wait_for, lambda: server.status().limiter.valid)
        assert (await executor.execute("print(1)")).stdout.text == "1\n"
    wait_for(limiter.idle)


async def test_sessions_that_rest_outlive_a_server_that_hangs(server: Server, limiter: Limiter) -> None:
    async with ExecutorClient(server.target) as executor, executor.session() as session:
        await session.run("x = 41")
        os.kill(server.pid, signal.SIGSTOP)
        await asyncio.sleep(3.5)  # longer than the limiter hears nothing of an executor that works
        os.kill(server.pid, signal.SIGCONT)
        await asyncio.to_thread(wait_for, lambda: server.status().limiter.valid)
        assert (await session.run("x + 1")).displays[0].text == "42"
