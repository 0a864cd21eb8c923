"""Many runs of good and hostile programs against one server: every result is right, and nothing is left or grows.

`pytest -m soak tests/executor/test_soak.py`; FAIRBOX_SOAK_RUNS sets the number of runs (100,000).
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from executor_service import ExecutionResult, ExecutorClient, InputFile, Limits, Outcome
from tests.executor.levels import LEVELS, Level
from tests.executor.servers import (
    Server,
    children,
    descriptors,
    groups_left,
    processes_with,
    sandbox_mounts,
    wait_for,
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(24 * 3600)]
RUNS = int(os.environ.get("FAIRBOX_SOAK_RUNS", "100000"))
CONCURRENCY = 8
GROWTH = 1.05
"""Largest allowed ratio of the server's memory at the end to its memory after the first tenth."""
MARKER = "87654.321"
MIB = 1 << 20


@dataclass(frozen=True)
class Kind:
    """A program, how often it comes, and what must become of it. Each run has a token of its own."""

    weight: int
    code: str
    right: Callable[[ExecutionResult, str], bool]
    limits: Limits = field(default_factory=lambda: Limits(wall_time_s=60))
    returns: tuple[str, ...] = ()


def said(result: ExecutionResult, text: str) -> bool:
    return (result.outcome, result.stdout.text, result.stderr.text) == (Outcome.FINISHED, text, "")


def ended(*outcomes: Outcome) -> Callable[[ExecutionResult, str], bool]:
    return lambda result, token: result.outcome in outcomes


KINDS = {
    "prints": Kind(300, "import sys; print(sys.argv[1])", lambda r, token: said(r, f"{token}\n")),
    "reads": Kind(100, "print(input()[::-1])", lambda r, token: said(r, f"{token[::-1]}\n")),
    "returns": Kind(
        60,
        "open('out', 'w').write(open('in').read() * 2)",
        lambda r, token: said(r, "") and r.files[0].content == token.encode() * 2,
        returns=("out",),
    ),
    "looks_around": Kind(
        60,
        "import os; print(sorted(os.listdir('.')), os.listdir(os.environ['TMPDIR']))",
        lambda r, token: said(r, "['in', 'main.py'] []\n"),
    ),
    "computes": Kind(60, "print(sum(i * i for i in range(100000)))", lambda r, token: said(r, "333328333350000\n")),
    "fails": Kind(60, "raise ValueError(1)", lambda r, token: (r.outcome, r.exit_code) == (Outcome.NONZERO_EXIT, 1)),
    "crashes": Kind(20, "import os; os.abort()", lambda r, token: (r.outcome, r.signal) == (Outcome.SIGNALED, 6)),
    "spawns": Kind(
        20,
        "import subprocess, sys; print(subprocess.run(['echo', sys.argv[1]], capture_output=True, text=True).stdout)",
        lambda r, token: said(r, f"{token}\n\n"),
    ),
    "threads": Kind(
        20,
        "import threading\nt = [threading.Thread(target=print, args=('x\\n',), kwargs={'end': ''}) for _ in range(4)]\n"
        "[x.start() for x in t]",
        lambda r, token: said(r, "x\n" * 4),
    ),
    "leaves_an_orphan": Kind(
        20,
        f"import os, subprocess; subprocess.Popen(['sleep', '{MARKER}'], start_new_session=True); print(1, flush=True)",
        lambda r, token: said(r, "1\n"),
    ),
    "leaves_files": Kind(
        20,
        "import os, tempfile\nfor f in ('.', tempfile.gettempdir()):\n"
        "    for i in range(20): os.makedirs(f'{f}/d{i}/e'); os.symlink('/', f'{f}/d{i}/l')\n"
        "    os.chmod(f'{f}/d0', 0)",
        lambda r, token: said(r, ""),
    ),
    "kills_everything": Kind(
        10,
        "import os, subprocess; p = subprocess.Popen(['sleep', '60']); os.kill(-1, 9); print(p.wait())",
        lambda r, token: said(r, "-9\n"),
    ),
    "never_ends": Kind(5, "while True: pass", ended(Outcome.TIME_LIMIT), Limits(wall_time_s=0.2)),
    "stops": Kind(5, "import os; os.kill(os.getpid(), 19)", ended(Outcome.TIME_LIMIT), Limits(wall_time_s=0.2)),
    "bombs": Kind(
        3,
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        ended(Outcome.TIME_LIMIT, Outcome.PROCESS_LIMIT, Outcome.CPU_LIMIT, Outcome.MEMORY_LIMIT),
        Limits(wall_time_s=0.3, processes=16),
    ),
    "eats": Kind(
        3,
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        ended(Outcome.MEMORY_LIMIT),
        Limits(wall_time_s=60, memory_bytes=96 * MIB),
    ),
    "floods": Kind(
        3,
        "import os\nwhile True: os.write(1, b'x' * 65536)",
        ended(Outcome.OUTPUT_LIMIT),
        Limits(wall_time_s=60, output_bytes=1000),
    ),
    "closes_everything": Kind(
        5, "import os; os.closerange(0, 300); os._exit(3)", lambda r, token: r.exit_code == 3 and not r.stdout.data
    ),
}


async def run_once(executor: ExecutorClient, name: str) -> tuple[str, ExecutionResult] | None:
    """None: the result is right."""
    kind, token = KINDS[name], uuid.uuid4().hex
    result = await executor.execute(
        kind.code,
        args=[token],
        stdin=f"{token}\n".encode(),
        files=[InputFile("in", token.encode())],
        return_paths=kind.returns,
        limits=kind.limits,
    )
    return None if kind.right(result, token) else (name, result)


async def soak(server: Server, runs: int, seed: int) -> list[tuple[str, ExecutionResult]]:
    """Runs a random mix; returns what was wrong."""
    chosen = random.Random(seed).choices(list(KINDS), [kind.weight for kind in KINDS.values()], k=runs)
    todo = iter(chosen)
    wrong: list[tuple[str, ExecutionResult]] = []

    async with ExecutorClient(server.target) as executor:

        async def worker() -> None:
            for name in todo:
                problem = await run_once(executor, name)
                if problem is not None:
                    wrong.append(problem)

        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(worker())
    return wrong


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("level", LEVELS, ids=str)
async def test_nothing_is_wrong_nothing_is_left_and_nothing_grows(level: Level) -> None:
    with level.running("max_concurrent=4") as server:
        wrong = await soak(server, max(RUNS // 10, 200), seed=1)
        wait_for(lambda: processes_with(MARKER) == [])
        await asyncio.sleep(2)
        before = (resident_bytes(server.pid), len(descriptors(server.pid)), len(children(server.pid)))
        folders = Counter(path.parent for path in map(Path, groups_left(server.pid)))
        wrong += await soak(server, RUNS - RUNS // 10, seed=2)
        assert not wrong, (len(wrong), wrong[:5])
        wait_for(lambda: processes_with(MARKER) == [])
        wait_for(lambda: len(children(server.pid)) <= before[2], 60)
        wait_for(lambda: len(descriptors(server.pid)) <= before[1], 60)
        assert Counter(path.parent for path in map(Path, groups_left(server.pid))) == folders
        assert sandbox_mounts(os.getpid()) == []
        assert resident_bytes(server.pid) <= before[0] * GROWTH
        # An answer may come a moment before its run has cleared up.
        wait_for(lambda: (server.status().running, server.status().queued) == (0, 0))
        left = children(server.pid)
        pid = server.pid
        server.process.terminate()
        server.process.wait(timeout=60)
    wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in left))
    assert groups_left(pid) == []
