"""The memory of a server and its programs together: what is promised, what waits, what the kernel does without it."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor_service import Cause, ExecutorClient, InvalidRequest, Limits, Outcome
from executor_service.guest.meters import Meters
from executor_service.sandbox.memory import KernelKills, memory_bytes, room_for_programs
from fairbox.testing import ManualClock
from tests.executor.servers import Server, held, let_go, running, wait_for

GIB = 1 << 30
MEMORY = Path("/sys/fs/cgroup/memory")
"""Control groups of version 1; a server does not know their bound."""


def test_a_server_has_no_more_than_its_machine() -> None:
    found = re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())
    assert found
    assert 0 < memory_bytes() <= int(found[1]) << 10


@pytest.mark.parametrize("total", [256 << 20, GIB, 12 * GIB, 1 << 40])
def test_programs_have_most_of_it_and_never_all(total: int) -> None:
    assert 0.7 * total <= room_for_programs(total) < total


def test_a_scratch_folder_in_memory_takes_its_part() -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        pytest.skip("there is no /dev/shm")
    total = 1 << 50
    size = os.statvfs(shared).f_blocks * os.statvfs(shared).f_frsize
    assert room_for_programs(total) - room_for_programs(total, str(shared)) == size
    assert room_for_programs(total, "/usr") == room_for_programs(total)
    assert room_for_programs(total, "/nonexistent") == room_for_programs(total)


def test_a_kill_counts_for_what_ran_when_it_was_seen() -> None:
    clock, killed = ManualClock(), [7]
    kills = KernelKills(clock, lambda: killed[0])
    assert not kills.during(100)  # what was before the first look is nobody's here
    killed[0] = 8
    assert kills.during(1)
    clock.advance(5)
    assert not kills.during(4)
    assert kills.during(6)


@pytest.mark.parametrize(
    ("after", "counted"),
    [("oom 1\noom_kill 3", (3, 0)), ("oom 0\noom_kill 3", (0, 3)), ("oom 1\noom_kill 0", (0, 0))],
)
def test_a_group_tells_its_own_limit_from_one_above_it(after: str, counted: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("oom 0\noom_kill 0\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 0\n")
    none: Any = dict.fromkeys(("each_use", "dying", "reclaim", "processes", "peak", "charged", "used"), "")
    files = {"oom": str(tmp_path / "memory.events"), "cpu": str(tmp_path / "cpu.stat")}
    meters = Meters(none | files | {"attach": [], "limits": {}, "init": []})
    meters.begin()
    (tmp_path / "memory.events").write_text(f"{after}\n")
    reading = meters.read()
    assert (reading.oom_kills, reading.outside_kills) == counted


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that is asked to allow more memory than any machine has."""
    with running(
        f"max_limits.memory_bytes={1 << 50}", "max_concurrent=4", f"limits.memory_bytes={64 << 20}"
    ) as started:
        yield started
    assert started.process.returncode == 0


async def test_nobody_is_promised_more_than_the_server_has(executor: ExecutorClient, server: Server) -> None:
    most = server.status().max_limits.memory_bytes
    assert 0 < most <= memory_bytes()
    with pytest.raises(InvalidRequest, match=rf"limits\.memory_bytes is .*, must be at most {most}$"):
        await executor.execute("print(1)", limits=Limits(memory_bytes=most + 1))


async def test_programs_that_do_not_fit_beside_each_other_run_one_after_another(
    executor: ExecutorClient, server: Server
) -> None:
    status = server.status()
    assert status.program_memory_bytes == status.max_limits.memory_bytes
    large = Limits(memory_bytes=int(0.6 * status.program_memory_bytes))
    marker, code = held()
    first = asyncio.create_task(executor.execute(code, limits=large))
    await asyncio.to_thread(wait_for, lambda: server.status().running == 1)
    assert server.status().running_memory_bytes >= large.memory_bytes
    second = asyncio.create_task(executor.execute("print(2)", limits=large))
    await asyncio.to_thread(wait_for, lambda: server.status().queued == 1)
    assert not first.done()
    await asyncio.to_thread(let_go, marker)
    assert (await first).outcome is Outcome.FINISHED
    ran = await second
    assert (ran.outcome, ran.stdout.text) == (Outcome.FINISHED, "2\n")
    assert ran.queue_time_s > 0


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of which the server knows nothing, with 700 MB for it and all of its programs."""
    if os.geteuid() != 0 or not os.access(MEMORY, os.W_OK):
        pytest.skip("no control groups of version 1 that could be made, for a bound that the server does not see")
    folder = MEMORY / f"fairbox-test-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(str(700 << 20))
        yield folder
    finally:
        wait_for(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


EATS = """
import time
held = []
for _ in range(1000):
    held.append(bytearray(b"x") * (1 << 20))
    time.sleep(0.002)
"""


async def test_what_the_kernel_kills_for_want_of_memory_is_not_the_programs_fault(group: Path) -> None:
    prefix = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    with running("spare_boxes=1", prefix=prefix) as server:
        async with ExecutorClient(server.target) as executor:
            ran = await executor.execute(EATS, limits=Limits(memory_bytes=2 * GIB, wall_time_s=60))
            assert (ran.outcome, ran.cause) == (Outcome.SANDBOX_ERROR, Cause.INFRA), ran
            assert "had no memory left" in ran.message
            cell = await executor.execute(EATS, limits=Limits(memory_bytes=2 * GIB, wall_time_s=60), display=True)
            assert cell.cause is Cause.INFRA, cell
            own = await executor.execute("import os; os.kill(os.getpid(), 9)")
            assert (own.outcome, own.cause) == (Outcome.SIGNALED, Cause.POLICY), own
            mine = await executor.execute(EATS, limits=Limits(memory_bytes=200 << 20, wall_time_s=60))
            assert (mine.outcome, mine.cause) == (Outcome.MEMORY_LIMIT, Cause.POLICY), mine
