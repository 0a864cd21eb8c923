"""An error of a block that the server's parts are entered for comes out as it is, after the end of all that ran."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator

import pytest

from executor_service import app
from executor_service.cleanup import leave
from executor_service.config import ExecutorConfig
from executor_service.images.table import Images
from executor_service.model import ExecutionResult, RunRequest
from executor_service.rpc.workspaces import WorkspaceCalls
from executor_service.runs.leases import NoLimiter
from executor_service.runs.queue import Draining, ExecutionQueue
from executor_service.sessions.sessions import Sessions
from executor_service.wire.sessions import SessionRequest
from executor_service.workspaces.table import open_workspaces
from fairbox.clock import MonotonicClock
from tests.executor.servers import GROUPS, processes_with, wait_for

CONFIG = ExecutorConfig(
    listen="127.0.0.1:0",
    languages="python",
    max_concurrent=2,
    profiles={},
    cgroups=GROUPS if os.geteuid() == 0 else "none",
)


class OopsError(Exception):
    """The block's own."""


@contextlib.asynccontextmanager
async def parts() -> AsyncIterator[tuple[ExecutionQueue, Sessions]]:
    """Opens the parts of a server, nested as the server nests them: workspaces, boxes, sessions, runs,
    verifications."""
    clock = MonotonicClock()
    async with contextlib.AsyncExitStack() as stack:
        folder = app.open_workspace_folder(stack, CONFIG)
        here, _ = await app.open_here(stack, CONFIG, clock, str(folder.store))
        workspaces = await stack.enter_async_context(open_workspaces(CONFIG, folder, clock, here.boxes, here.planner))
        hold = WorkspaceCalls(workspaces, [], [], name="blocks", copy_bytes=0).hold
        images = Images(None, clock, mounts=False, waited_for=here.boxes.images.has)
        _, sessions, runs, _ = await app.open_work(stack, CONFIG, here, hold, images, NoLimiter(), clock, "blocks")
        yield runs, sessions


def program(marker: str) -> RunRequest:
    code = f"import subprocess; subprocess.run(['sleep', '600.{marker}'])"
    return RunRequest(code=code.encode(), language="python", limits=CONFIG.policy().defaults)


async def test_an_error_beside_a_running_program_comes_out_alone() -> None:
    marker = str(uuid.uuid4().int)[:12]
    calls: list[asyncio.Task[ExecutionResult]] = []

    async def block() -> None:
        async with parts() as (runs, sessions):
            await sessions.create(SessionRequest("python", CONFIG.policy().defaults, idle_ttl_s=60))
            calls.append(asyncio.create_task(runs.execute(program(marker), b"")))
            await asyncio.to_thread(wait_for, lambda: processes_with(f"600.{marker}"))
            raise OopsError("mine")

    with pytest.raises(OopsError, match="mine"):
        await block()
    assert not processes_with(f"600.{marker}")
    assert (await calls[0]).message.startswith("Killed: nobody waited")


async def test_a_cancelled_block_is_cancelled_and_nothing_else() -> None:
    entered = asyncio.Event()

    async def block() -> None:
        async with parts():
            entered.set()
            await asyncio.sleep(600)

    task = asyncio.create_task(block())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def fails() -> None:
    raise ValueError("a task's own")


async def test_an_error_of_a_task_is_told_whatever_the_block_raises(caplog: pytest.LogCaptureFixture) -> None:
    tasks = asyncio.TaskGroup()
    await tasks.__aenter__()
    tasks.create_task(fails())
    await asyncio.sleep(0)  # or it would never begin
    await leave(tasks, OopsError("mine"))
    assert "a task's own" in caplog.text
    tasks = asyncio.TaskGroup()
    await tasks.__aenter__()
    tasks.create_task(fails())
    with pytest.raises(ExceptionGroup) as caught:
        await leave(tasks, None)
    assert [str(error) for error in caught.value.exceptions] == ["a task's own"]


async def test_a_run_that_came_in_the_last_moment_gets_its_refusal() -> None:
    """The server begins to end after it has taken a request in, and before anything is done for it."""
    async with parts() as (runs, _):
        call = asyncio.create_task(runs.execute(program("0"), b""))
        await asyncio.sleep(0)
        await runs.drain(0.0)
        with pytest.raises(Draining):
            await asyncio.wait_for(call, 10)
        assert runs.statistics().running == 0
