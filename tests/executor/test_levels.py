"""Choice of a level; and at `landlock`, without a pid namespace, nothing outlives a program that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor_service import Cause, ExecutorClient, Limits, Outcome
from executor_service.guest.walls import landlock
from executor_service.v1 import executor_pb2 as pb
from tests.executor.levels import ENV, HOME, LEVELS, PREFIX, PYTHON, Level
from tests.executor.servers import Server, children, command, parent, processes_with, running, wait_for

MARKER = f"76543.{os.getpid():08d}"
BARE = [level for level in LEVELS if level.landlock]
DAEMON = f"""
import os, signal, time
if os.fork() == 0:
    os.setsid()
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    if os.fork() == 0: os.execvp("sleep", ["sleep", "{MARKER}"])
time.sleep(60)
"""


@pytest.fixture(scope="module", params=BARE, ids=str)
def level(request: pytest.FixtureRequest) -> Level:
    found: Level = request.param
    return found


@pytest.fixture(scope="module")
def server(level: Level) -> Iterator[Server]:
    """A server that the last test of a level kills."""
    with level.running("max_concurrent=2") as started:
        yield started


def test_every_level_is_tried_and_shown_with_the_version_of_landlock_that_is_gone_by(
    level: Level, server: Server
) -> None:
    levels = {entry.level: entry for entry in server.status().isolation_levels}
    assert levels[pb.ISOLATION_LEVEL_LANDLOCK].available
    assert levels[pb.ISOLATION_LEVEL_NAMESPACES].available or levels[pb.ISOLATION_LEVEL_NAMESPACES].reason
    wanted = min(level.version, landlock.abi())
    assert {each: entry.landlock_version for each, entry in levels.items()} == {
        pb.ISOLATION_LEVEL_NAMESPACES: 0,
        pb.ISOLATION_LEVEL_LANDLOCK: wanted,
    }


async def running_daemon(server: Server) -> None:
    """Returns when the program runs; its result, or the lack of one, is nobody's concern."""
    async with ExecutorClient(server.target) as executor:
        call = asyncio.ensure_future(executor.execute(DAEMON, limits=Limits(wall_time_s=60)))
        await asyncio.to_thread(wait_for, lambda: processes_with(MARKER) != [])
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
    await asyncio.to_thread(wait_for, lambda: processes_with(MARKER) == [])


async def started_and_left(server: Server, kill: list[int]) -> None:
    async with ExecutorClient(server.target) as executor:
        call = asyncio.ensure_future(executor.execute(DAEMON, limits=Limits(wall_time_s=60)))
        await asyncio.to_thread(wait_for, lambda: processes_with(MARKER) != [])
        for pid in kill or inits(server):
            with contextlib.suppress(ProcessLookupError):  # a zygote that loads has children for a moment
                os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(wait_for, lambda: processes_with(MARKER) == [])
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


def zygotes(server: Server) -> list[int]:
    """Children of the server."""
    return [pid for pid in children(server.pid) if parent(pid) == server.pid]


def inits(server: Server) -> list[int]:
    return [pid for pid in children(server.pid) if parent(pid) in zygotes(server)]


@pytest.mark.skipif(
    os.geteuid() != 0 or PYTHON is None, reason="takes root, and a Python that an ordinary user may start"
)
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's programs may read what the server may")
def test_an_interpreter_that_programs_may_not_read_is_no_level(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    venv.create(closed, symlinks=True)
    words, _, _ = command("isolation=landlock", "min_isolation=landlock", f"python={closed}/bin/python")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "a program could not even be run: its user may not read /" in done.stderr, done.stderr
    assert "of its interpreter: name another in `python`" in done.stderr


async def test_the_first_process_of_a_container_offers_the_same_levels() -> None:
    """The server's number is then that of every sandbox's init, which a program may signal."""
    assert PYTHON is not None
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *PREFIX]
    with running("cgroups=none", prefix=prefix, python=PYTHON, env=ENV, cwd=HOME) as server:
        status = server.status()
        async with ExecutorClient(server.target) as executor:
            assert (await executor.execute("import os; os.kill(1, 0)")).outcome is Outcome.FINISHED
        os.kill(children(server.pid)[0], signal.SIGTERM)
    assert status.isolation_level == pb.ISOLATION_LEVEL_NAMESPACES, status.isolation_levels


async def test_a_cancelled_run_leaves_nothing(server: Server) -> None:
    await running_daemon(server)


async def goes_on(server: Server) -> None:
    """Returns when a program runs again. Boxes that died while they waited may be handed out once more: INFRA."""
    async with ExecutorClient(server.target) as executor, asyncio.timeout(60):
        while not (result := await executor.execute("print(1)")).ok:
            assert result.cause is Cause.INFRA
        assert result.stdout.data == b"1\n"


async def test_nothing_outlives_an_init_that_is_killed(server: Server) -> None:
    await started_and_left(server, [])
    await goes_on(server)


async def test_nothing_outlives_a_zygote_that_is_killed(server: Server) -> None:
    await started_and_left(server, zygotes(server))
    await goes_on(server)


async def test_nothing_outlives_a_server_that_is_killed(server: Server) -> None:
    await started_and_left(server, [server.pid])
