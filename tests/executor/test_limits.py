"""Each limit ends in its outcome, and what the code could have caused is POLICY."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from executor_service import (
    CannotBranch,
    Cause,
    ExecutionResult,
    ExecutorClient,
    InputFile,
    InvalidRequest,
    Limits,
    Outcome,
)
from executor_service.guest.walls.landlock import abi
from tests.executor.levels import PYTHON
from tests.executor.servers import Server, idle, running, wait_for

MIB = 1 << 20


@pytest.fixture(scope="module")
def no_groups() -> Iterator[Server]:
    """A server whose inits look at memory and processes themselves."""
    with running("cgroups=none") as started:
        yield started


@pytest.fixture
async def watched(no_groups: Server) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(no_groups.target) as client:
        yield client


def killed(result: ExecutionResult, outcome: Outcome) -> None:
    assert (result.outcome, result.cause) == (outcome, Cause.POLICY), result
    assert result.message.startswith("Killed: the program ")
    assert (result.signal, result.exit_code) == (9, 137)


async def test_wall_time(executor: ExecutorClient) -> None:
    result = await executor.execute(
        "print('before', flush=True); import time; time.sleep(60)", limits=Limits(wall_time_s=1)
    )
    killed(result, Outcome.TIME_LIMIT)
    assert result.stdout.data == b"before\n"
    assert result.wall_time_s >= 1
    assert "longer than 1 s" in result.message


async def test_the_start_of_an_interpreter_is_not_charged_to_what_it_displays(executor: ExecutorClient) -> None:
    for _ in range(100):
        result = await executor.execute("1", display=True, limits=Limits(wall_time_s=1e-9, cpu_time_s=1e-9))
        if result.outcome is not Outcome.FINISHED:  # it was faster than anybody looked
            assert result.outcome in (Outcome.TIME_LIMIT, Outcome.CPU_LIMIT)  # both are over at once
            killed(result, result.outcome)


async def test_cpu_time_of_one_process(executor: ExecutorClient) -> None:
    result = await executor.execute("while True: pass", limits=Limits(cpu_time_s=0.5, wall_time_s=60))
    killed(result, Outcome.CPU_LIMIT)
    assert 0.5 <= result.cpu_time_s < 10


async def test_cpu_time_counts_every_process(executor: ExecutorClient) -> None:
    code = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    result = await executor.execute(code, limits=Limits(cpu_time_s=0.8, wall_time_s=60))
    killed(result, Outcome.CPU_LIMIT)
    assert result.cpu_time_s >= 0.8


FORGOTTEN = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if os.fork() == 0:
        end = time.process_time() + 0.2
        while time.process_time() < end: pass
        os._exit(0)
    time.sleep(0.25)
"""


async def test_cpu_time_of_children_that_nobody_waits_for_counts(executor: ExecutorClient) -> None:
    killed(await executor.execute(FORGOTTEN, limits=Limits(cpu_time_s=1, wall_time_s=60)), Outcome.CPU_LIMIT)


async def test_as_far_as_it_is_seen_where_no_group_counts_it(watched: ExecutorClient) -> None:
    killed(await watched.execute(FORGOTTEN, limits=Limits(cpu_time_s=1, wall_time_s=60)), Outcome.CPU_LIMIT)


async def test_what_a_short_program_uses_is_counted_while_the_processors_are_busy(executor: ExecutorClient) -> None:
    """Whatever ran first, the init that begins to count or the worker that is set up, is taken off no program."""
    busy = "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
    hogs = [asyncio.create_task(executor.execute(busy)) for _ in range(3)]
    for _ in range(60):
        assert (await executor.execute("print('hello')")).cpu_time_s > 0
    for hog in hogs:
        assert (await hog).ok


async def test_memory_of_one_process(executor: ExecutorClient) -> None:
    code = "x = []\nwhile True: x.append(bytearray(1 << 20))"
    result = await executor.execute(code, limits=Limits(memory_bytes=64 * MIB))
    killed(result, Outcome.MEMORY_LIMIT)
    assert result.peak_memory_bytes > 48 * MIB


async def test_memory_of_all_processes_together(executor: ExecutorClient) -> None:
    code = "import os, time\nfor _ in range(2): os.fork()\nx = b'x' * (40 << 20)\ntime.sleep(60)"
    result = await executor.execute(code, limits=Limits(memory_bytes=100 * MIB, wall_time_s=50))
    killed(result, Outcome.MEMORY_LIMIT)


async def test_a_child_killed_for_memory_ends_the_run(executor: ExecutorClient) -> None:
    code = """
import os, time
if os.fork() == 0:
    x = []
    while True: x.append(bytearray(1 << 20))
time.sleep(60)
"""
    result = await executor.execute(code, limits=Limits(memory_bytes=64 * MIB, wall_time_s=50))
    killed(result, Outcome.MEMORY_LIMIT)


async def test_few_open_files_are_enough_for_cells_and_candidates(executor: ExecutorClient) -> None:
    few = Limits(open_files=16)
    assert (await executor.execute("print(1)", display=True, limits=few)).stdout.data == b"1\n"
    async with executor.session(limits=few) as session:
        assert (await session.run("print(2)")).stdout.data == b"2\n"
        with pytest.raises(CannotBranch):
            await session.branch()


async def test_open_files_are_bounded(executor: ExecutorClient) -> None:
    code = "x = []\ntry:\n    while True: x.append(open('/dev/null'))\nexcept OSError as e: print(e.strerror, len(x))"
    assert (await executor.execute(code, limits=Limits(open_files=32))).stdout.data == b"Too many open files 29\n"


async def test_a_fork_bomb_is_contained(executor: ExecutorClient, server: Server) -> None:
    code = """
import os
import signal
while True:
    try: os.fork()
    except OSError: pass
"""
    killed(await executor.execute(code, limits=Limits(processes=32)), Outcome.PROCESS_LIMIT)
    wait_for(lambda: idle(server))


async def test_threads_count_as_processes(executor: ExecutorClient) -> None:
    code = """
import threading, time
for i in range(100):
    try: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
    except RuntimeError: break
"""
    assert (await executor.execute(code, limits=Limits(processes=10))).outcome is Outcome.PROCESS_LIMIT


FORKS = {
    "children that do nothing": (
        "import os, time\nfor _ in range(200):\n    if os.fork() == 0: time.sleep(60)",
        Outcome.PROCESS_LIMIT,
        (0, 128),
    ),
    "children that are left": (
        "import os\ntry:\n    while True:\n        if os.fork() == 0: os.execv('/bin/sleep', ['sleep', '60'])\n"
        "except OSError: os._exit(1)",
        Outcome.PROCESS_LIMIT,
        (0, 128),
    ),
    "children that fill memory": (
        "import os, time\nfor _ in range(9):\n    if os.fork() == 0: x = b'x' * (60 << 20); time.sleep(60)\n"
        "time.sleep(60)",
        Outcome.MEMORY_LIMIT,
        (200, 2000),
    ),
    "children that share memory": (
        "import os, time\nx = b'x' * (100 << 20)\nfor _ in range(20):\n    if os.fork() == 0: time.sleep(60)\n"
        "time.sleep(0.3)",
        Outcome.FINISHED,
        (100, 160),
    ),
}
"""Program -> how it ends, and its peak, from and to, in MiB."""


@pytest.mark.parametrize("forks", FORKS)
async def test_without_control_groups_forks_end_as_with_them(watched: ExecutorClient, forks: str) -> None:
    code, outcome, (least, most) = FORKS[forks]
    result = await watched.execute(code, limits=Limits(memory_bytes=256 * MIB, wall_time_s=50))
    assert (result.outcome, result.cause) == (outcome, Cause.POLICY), result
    assert least * MIB <= result.peak_memory_bytes <= most * MIB


async def test_shared_memory_counts_once_where_root_may_not_trace() -> None:
    """Root of a container has no CAP_SYS_PTRACE."""
    if os.geteuid() != 0 or not abi():
        pytest.skip("needs root, and a kernel with Landlock")
    lacking = ("setpriv", "--bounding-set=-all,+chown,+dac_override,+fowner,+kill,+setgid,+setuid,+setpcap")
    settings = ("cgroups=none", "isolation=landlock", "min_isolation=landlock", f"python={PYTHON or ''}")
    code, outcome, (least, most) = FORKS["children that share memory"]
    with running(*settings, prefix=lacking) as server:
        async with ExecutorClient(server.target) as client:
            result = await client.execute(code, limits=Limits(memory_bytes=256 * MIB, wall_time_s=50))
    assert result.outcome is outcome
    assert least * MIB <= result.peak_memory_bytes <= most * MIB


async def test_too_many_forks_are_told_where_the_server_is_too_late_to_say_how_many_may_be(
    watched: ExecutorClient, no_groups: Server
) -> None:
    """The server says it to a program that has run for a moment: here it stands still from about then on."""
    code, outcome, _ = FORKS["children that are left"]
    for number in range(8):
        run = asyncio.create_task(watched.execute(code, limits=Limits(wall_time_s=50)))
        await asyncio.sleep(0.004 + 0.001 * number)
        os.kill(no_groups.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(0.3)
        finally:
            os.kill(no_groups.pid, signal.SIGCONT)
        assert (await run).outcome is outcome


async def test_output_beyond_the_limit_is_cut_and_counted(executor: ExecutorClient) -> None:
    code = "import sys; sys.stdout.write('x' * 5_000_000); sys.stderr.write('y' * 20)"
    result = await executor.execute(code, limits=Limits(output_bytes=1000))
    assert (result.outcome, result.exit_code) == (Outcome.FINISHED, 0)
    assert (result.stdout.data, result.stdout.total_bytes, result.stdout.truncated) == (b"x" * 1000, 5_000_000, True)
    assert (result.stderr.data, result.stderr.truncated) == (b"y" * 20, False)


async def test_exactly_the_limit_is_not_truncated(executor: ExecutorClient) -> None:
    result = await executor.execute("print('x' * 99)", limits=Limits(output_bytes=100))
    assert (len(result.stdout.data), result.stdout.truncated) == (100, False)


@pytest.mark.parametrize("stream", [1, 2])
async def test_a_flood_is_drained_capped_and_ended(executor: ExecutorClient, stream: int) -> None:
    code = f"import os\nfor _ in range(100_000): os.write({stream}, b'x' * 1_000_000)"
    result = await executor.execute(code, limits=Limits(output_bytes=MIB, wall_time_s=50))
    killed(result, Outcome.OUTPUT_LIMIT)
    output = result.stdout if stream == 1 else result.stderr
    assert (output.data, output.truncated) == (b"x" * MIB, True)
    assert 64 * MIB < output.total_bytes < 100_000 * 1_000_000


async def test_queueing_and_set_up_are_not_charged(executor: ExecutorClient) -> None:
    code = "import time; time.sleep(0.2)"
    results = await asyncio.gather(*(executor.execute(code, limits=Limits(wall_time_s=2)) for _ in range(40)))
    assert {result.outcome for result in results} == {Outcome.FINISHED}
    assert max(result.queue_time_s for result in results) > 1  # 40 programs of 0.2 s in four slots


async def test_files_larger_than_the_room_for_them_are_refused_before_anything_runs(executor: ExecutorClient) -> None:
    with pytest.raises(InvalidRequest, match=r"limits.disk_bytes is 1048576, but code and files need"):
        await executor.execute("1", files=[InputFile("big", bytes(2 * MIB))], limits=Limits(disk_bytes=MIB))


async def test_waiting_for_a_processor_is_not_charged_to_a_program() -> None:
    """Eight times as many programs as processors, each of which needs more wall time than it has; and less than four
    times that, as long as others take no more of the processors than these do."""
    at_once = 8 * len(os.sched_getaffinity(0))
    code = "import time\nwhile time.process_time() < 0.4: pass"
    with running(f"max_concurrent={at_once}") as busy:
        async with ExecutorClient(busy.target) as client:
            runs = (client.execute(code, limits=Limits(wall_time_s=2.5)) for _ in range(at_once))
            results = await asyncio.gather(*runs)
            idle_one = await client.execute("import time; time.sleep(60)", limits=Limits(wall_time_s=0.5))
    assert max(result.wall_time_s for result in results) > 2.5
    assert {result.outcome for result in results} == {Outcome.FINISHED}
    assert idle_one.outcome is Outcome.TIME_LIMIT
