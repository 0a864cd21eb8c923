"""Memory that a session holds between its cells is promised to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from executor_service import ExecutorClient, Limits, Outcome, Session
from executor_service.v1 import executor_pb2 as pb
from tests.executor.levels import Level
from tests.executor.servers import Server, held, let_go, wait_for

MIB = 1 << 20
HELD = 160 * MIB
NEARLY = HELD - 24 * MIB
"""Bytes that are told of it at least: changes of less than 16 MiB are not."""
HOLD = f"kept = bytearray(b'x') * {HELD}"
SMALL = Limits(memory_bytes=64 * MIB, disk_bytes=MIB)


@pytest.fixture(scope="module")
def server(level: Level) -> Iterator[Server]:
    """A server that allows each program all the memory that there is."""
    most = [f"max_limits.memory_bytes={1 << 50}", f"max_limits.disk_bytes={1 << 50}"]
    with level.running("max_concurrent=4", f"limits.memory_bytes={64 * MIB}", "limits.disk_bytes=1048576", *most) as it:
        yield it


@pytest.fixture
async def session(executor: ExecutorClient) -> AsyncIterator[Session]:
    async with executor.session(limits=Limits(memory_bytes=512 * MIB, disk_bytes=MIB)) as made:
        yield made


async def until(server: Server, least: int, most: int) -> pb.GetStatusResponse:
    """Status of a server that nothing runs on, once its sessions hold that many bytes."""

    def holds() -> bool:
        status = server.status()
        return not status.running and least <= status.session_memory_bytes <= most

    await asyncio.to_thread(wait_for, holds)
    return server.status()


async def test_it_is_told_and_is_free_again_when_it_is_let_go(server: Server, session: Session) -> None:
    await session.run("print(1)")
    assert (await until(server, 0, 0)).running_memory_bytes == 0
    await session.run(HOLD)
    await until(server, NEARLY, 512 * MIB)
    await session.run("del kept")
    await until(server, 0, 24 * MIB)


async def test_it_is_free_again_when_the_session_has_ended(executor: ExecutorClient, server: Server) -> None:
    async with executor.session(limits=Limits(memory_bytes=512 * MIB)) as session:
        await session.run(HOLD)
        await until(server, NEARLY, 512 * MIB)
    await until(server, 0, 0)


async def test_what_threads_come_to_hold_between_cells_is_told(server: Server, session: Session) -> None:
    code = f"import threading, time\ndef later():\n    global kept\n    time.sleep(1.5)\n    {HOLD}\n"
    await session.run(f"{code}threading.Thread(target=later, daemon=True).start()")
    await until(server, NEARLY, 512 * MIB)


async def test_a_program_waits_for_memory_that_a_session_holds(
    executor: ExecutorClient, server: Server, session: Session
) -> None:
    await session.run(HOLD)
    total = (await until(server, NEARLY, 512 * MIB)).program_memory_bytes
    marker, code = held()
    running = asyncio.create_task(executor.execute(code, limits=SMALL))
    await asyncio.to_thread(wait_for, lambda: server.status().running == 1)
    # All that there is but for the one that runs, and half of what the session holds.
    large = Limits(memory_bytes=total - server.status().running_memory_bytes - NEARLY // 2, disk_bytes=MIB)
    waiting = asyncio.create_task(executor.execute("print(2)", limits=large))
    await asyncio.to_thread(wait_for, lambda: server.status().queued == 1)
    await session.delete()
    assert (await waiting).stdout.text == "2\n"
    await asyncio.to_thread(let_go, marker)
    assert (await running).outcome is Outcome.FINISHED


async def test_where_nothing_runs_a_program_waits_for_no_session(
    executor: ExecutorClient, server: Server, session: Session
) -> None:
    await session.run(HOLD)
    total = (await until(server, NEARLY, 512 * MIB)).program_memory_bytes
    all_of_it = Limits(memory_bytes=total, disk_bytes=MIB)
    assert (await executor.execute("print(2)", limits=all_of_it)).stdout.text == "2\n"


async def test_a_cell_may_use_what_its_session_may_and_branches_share_it(server: Server, session: Session) -> None:
    one, *_ = branches = await session.branch(2)
    alone = asyncio.create_task(one.run("import time; time.sleep(2)"))
    await asyncio.to_thread(wait_for, lambda: server.status().running == 1)
    promised = server.status().running_memory_bytes
    assert promised >= 512 * MIB
    both = [asyncio.create_task(each.run("import time; time.sleep(1)")) for each in (*branches[1:], session)]
    await asyncio.to_thread(wait_for, lambda: server.status().running == 3)
    assert server.status().running_memory_bytes == promised
    assert all([(await each).ok for each in (alone, *both)])
    for each in branches:
        await each.delete()
    assert (await until(server, 0, 16 * MIB)).running_memory_bytes == 0


async def test_what_a_shell_leaves_running_is_told(executor: ExecutorClient, server: Server) -> None:
    hold = f"import time; kept = bytearray(b'x') * {HELD}; time.sleep(600)"
    async with executor.session(language="bash", limits=Limits(memory_bytes=512 * MIB, disk_bytes=MIB)) as shell:
        await shell.run(f'python3 -c "{hold}" > /dev/null 2>&1 &')
        await until(server, NEARLY, 512 * MIB)
        await shell.run("kill $!; wait")
        await until(server, 0, 24 * MIB)
