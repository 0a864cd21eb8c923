"""The executor on the kernel that `boot.sh` starts, for each kind of user: what works, and how limits are held."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from executor_service import Cause, ExecutorClient, Limits, Outcome
from rollout.stack import LocalStack
from tests.e2e.conftest import alive, children, fairbox, start, stop
from tests.executor.levels import HOME
from tests.executor.servers import Server, command, groups_left, running, wait_for

MIB = 1 << 20
ROW = os.environ.get("FAIRBOX_KERNEL_ROW", "")
ROUNDS = int(os.environ.get("FAIRBOX_KERNEL_ROUNDS", "1"))
"""Number of times that each bomb is set off."""
GROUPS = ROW in ("root", "delegated", "systemd")
REFUSED = {
    "no-namespaces": "user.max_user_namespaces (0)",
    "no-sysadmin": "root needs CAP_SYS_ADMIN",
}
"""Rows in which nothing works, and what the one sentence about it names."""
pytestmark = pytest.mark.kernel
starts = pytest.mark.skipif(ROW in REFUSED, reason="there the executor does not start")
FORK = "import os, time\nfor _ in range({}):\n    if os.fork() == 0: {}; time.sleep(60)\ntime.sleep(60)"
MEMORY = {
    "one object": "x = b'x' * (300 << 20)\nimport time; time.sleep(60)",
    "a list": "x = []\nwhile True: x.append(b'x' * 100_000)",
    "shared pages": "import mmap\nx = mmap.mmap(-1, 300 << 20)\nwhile True: x.write(b'x' * (1 << 20))",
    "children": FORK.format(6, "x = b'x' * (20 << 20)"),
    "a thread": "import threading\ndef fill(x=[]):\n    while True: x.append(b'x' * 100_000)\n"
    "thread = threading.Thread(target=fill); thread.start(); thread.join()",
    "another program": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'x = []\\n"
    'while True: x.append(b"x" * 100_000)\'])',
}
FILES = "file = open('/dev/shm/x', 'wb')\nfor _ in range(100): file.write(bytes(1 << 20))\nimport time; time.sleep(60)"
"""Counts as memory where there are groups."""
PROCESSES = {
    "a fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "children": FORK.format(100, "0"),
    "threads": "import threading, time\nfor _ in range(100): threading.Thread(target=time.sleep, args=(60,)).start()",
}
BOMBS = [
    *((code, Outcome.MEMORY_LIMIT) for code in (*MEMORY.values(), *([FILES] if GROUPS else []))),
    *((code, Outcome.PROCESS_LIMIT) for code in PROCESSES.values()),
]


def group_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


@pytest.mark.skipif(ROW not in ("systemd", "user"), reason="is about an ordinary user's systemd")
async def test_an_executor_of_ours_gets_a_control_group_from_systemd_or_says_why_not() -> None:
    async with LocalStack(executor_args=["languages=python"]) as stack:
        async with ExecutorClient(stack.ports.executor) as client:
            assert (await client.execute("print(1)")).ok
        group = group_of(stack.pid("executor_service"))
    assert (".scope/fairbox-server" in group) is (ROW == "systemd"), (group, stack.no_scope)
    assert ("systemd" in stack.no_scope or "bus" in stack.no_scope) is (ROW == "user")


@starts
def test_fairbox_up_serves_fairbox_exec_and_ends_all_that_it_started(tmp_path: Path) -> None:
    service = start(tmp_path)
    below = children(service.process.pid)
    done = fairbox("exec", "--executor", service.ports.executor, "-c", "print(6 * 7)", input="")
    assert (done.stdout, done.stderr, done.returncode) == ("42\n", "", 0)
    assert stop(service) == 130
    wait_for(lambda: not any(map(alive, below)))


@starts
async def test_programs_run(executor: ExecutorClient, server: Server) -> None:
    seen = "1" if ROW == "landlock" else "open('/proc/self/cgroup').read()"  # no /proc is shown there
    result = await executor.execute(f"print({seen}, end='')")
    assert (result.outcome, result.stdout.text) == (Outcome.FINISHED, "1" if ROW == "landlock" else "0::/\n")
    assert bool(groups_left(server.pid)) is GROUPS


@starts
@pytest.mark.timeout(400 * ROUNDS)
async def test_bombs(executor: ExecutorClient) -> None:
    """Each ends by its limit, and with groups nobody ever has more than that and 1 MiB. A neighbour is as it was."""
    limits = Limits(memory_bytes=64 * MIB, processes=24, wall_time_s=300, cpu_time_s=300)
    wrong, most = [], 0
    async with executor.session() as neighbour:
        await neighbour.run("kept = 42")
        for done in range(1, ROUNDS + 1):
            for code, outcome in BOMBS:
                result = await executor.execute(code, limits=limits)
                most = max(most, result.peak_memory_bytes)
                held = result.peak_memory_bytes <= 65 * MIB or not GROUPS
                if (result.outcome, result.cause) != (outcome, Cause.POLICY) or not held:
                    wrong.append((code, result))
            said = f"{len(wrong)} of {done * len(BOMBS)} bombs not held, {most / MIB:.2f} MiB at most"
            print(said, flush=True)  # noqa: T201 - how near the bar
            assert (await neighbour.run("print(kept)")).stdout.text == "42\n"
    assert len(wrong) <= (0 if GROUPS else len(BOMBS) * ROUNDS // 100), wrong


@pytest.mark.soak
@pytest.mark.skipif(not GROUPS, reason="there are no groups")
async def test_groups_cost_a_run_a_tenth_at_most(executor: ExecutorClient) -> None:
    """One after the other, on the one processor, so that what is done between two runs is in it. The best of each, by
    turns: others may use the machine."""
    with running("cgroups=none", "max_concurrent=4") as without:
        async with ExecutorClient(without.target) as other:
            best = [await seconds(each) for each in (executor, other)]
            for _ in range(8):
                best = [min(known, await seconds(each)) for known, each in zip(best, (executor, other), strict=True)]
    assert best[0] < 1.1 * best[1], best


async def seconds(client: ExecutorClient) -> float:
    began = time.perf_counter()
    for _ in range(20):
        assert (await client.execute("print(1)")).ok
    return time.perf_counter() - began


@pytest.mark.skipif(ROW not in REFUSED, reason="there the executor starts")
def test_it_says_in_one_sentence_what_is_missing() -> None:
    words, _, _ = command("languages=python")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=HOME)
    assert done.returncode == 1
    assert REFUSED[ROW] in done.stderr.splitlines()[-1]
