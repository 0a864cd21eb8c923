"""Control groups: nobody waits for what one program leaves charged to its group, and the next one does not pay."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor_service.app import open_boxes
from executor_service.config import ExecutorConfig
from executor_service.model import InputFile, Limits
from executor_service.sandbox.groups import find_groups
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import Mode, Plan, Report
from executor_service.sandbox.sandbox import Sandbox
from fairbox.clock import MonotonicClock
from tests.executor.servers import GROUPS, groups_left

MIB = 1 << 20
WHERE = GROUPS if os.geteuid() == 0 else "auto"
CONFIG = ExecutorConfig(cgroups=WHERE, spare_boxes=0, languages="python")
READ = """
import os, sys
for name in sys.argv[1:]: open(name, "rb").read()
"""
DISK = Path(os.environ.get("FAIRBOX_TEST_DISK", "/usr/bin"))
"""Folder whose files the kernel keeps cached after they are closed."""
FILES = [(path, path.stat().st_size) for path in DISK.iterdir() if path.is_file()]
SMALL = [path for path, size in FILES if 4000 < size < MIB][:40]
LARGE = [path for path, size in sorted(FILES, key=lambda file: file[1]) if size < 16 * MIB][-3:]
_touched: list[str] = []
"""Files of control groups that the thread of the event loop has opened, made or removed."""


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    on_loop = event in ("open", "os.mkdir", "os.rmdir") and threading.current_thread() is threading.main_thread()
    if on_loop and str(arguments[0]).startswith("/sys/fs/cgroup/"):
        _touched.append(str(arguments[0]))


sys.addaudithook(_listen)


@pytest.fixture(autouse=True)
def groups() -> None:
    """Skips where there are none."""
    tree = find_groups(WHERE)
    if not tree.works:
        pytest.skip(f"there are no control groups ({tree.reason}); `make test-kernel` has some")
    tree.remove()


@pytest.fixture
async def boxes(tmp_path: Path) -> AsyncIterator[SandboxPool]:
    async with open_boxes(CONFIG, MonotonicClock(), str(tmp_path)) as (_, opened, _):
        yield opened


@pytest.fixture
def touched() -> list[str]:
    _touched.clear()
    return _touched


def dying() -> list[int]:
    """For each box of this process, the groups of ended uses that the kernel keeps."""
    found = []
    for box in groups_left(os.getpid()):
        with contextlib.suppress(OSError):  # it is being removed
            found.append(int(Path(box, "cgroup.stat").read_text().split()[3]))
    return found


async def read(boxes: SandboxPool, *paths: Path) -> tuple[Report, Sandbox]:
    """A program that is the first to read files of the host."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    return await run(boxes, *map(str, paths))


async def run(boxes: SandboxPool, *arguments: Any, code: str = READ, **limits: Any) -> tuple[Report, Sandbox]:
    files = (InputFile("main.py", code.encode()),)
    wanted: Limits = replace(CONFIG.policy().defaults, wall_time_s=120.0, cpu_time_s=120.0, **limits)
    plan = Plan(("main.py", *map(str, arguments)), {}, wanted, "python-base", Mode.MAIN, files)
    async with boxes.take(plan) as sandbox:
        return await sandbox.run(), sandbox.box


async def test_no_file_of_a_control_group_is_touched_on_the_event_loop(touched: list[str], tmp_path: Path) -> None:
    async with open_boxes(CONFIG, MonotonicClock(), str(tmp_path)) as (_, boxes, _):
        for memory_bytes in (64 * MIB, 256 * MIB):
            assert (await run(boxes, memory_bytes=memory_bytes, processes=9))[0].code == 0
    assert touched == []


async def test_a_box_with_leftovers_of_the_kernel_is_given_to_nobody(boxes: SandboxPool) -> None:
    """Files that were read stay in the kernel's memory, charged to the group of the program that read them first."""
    first, its_box = await run(boxes)
    assert (await run(boxes))[1] is its_box, "a box in which nothing is left is used again"
    hostile, its_box = await read(boxes, *LARGE)
    assert hostile.peak_bytes > 24 * MIB
    after, another_box = await run(boxes, memory_bytes=32 * MIB)
    assert another_box is not its_box
    assert after.peak_bytes < first.peak_bytes + 8 * MIB


async def test_a_use_is_not_told_the_peak_of_the_one_before(boxes: SandboxPool) -> None:
    peaks = [(await run(boxes, code=f"held = bytearray({mib} << 20)"))[0].peak_bytes for mib in (100, 1, 60)]
    assert 100 * MIB < peaks[0] < 120 * MIB
    assert peaks[1] < 20 * MIB
    assert 60 * MIB < peaks[2] < 80 * MIB


async def test_groups_of_ended_uses_do_not_gather(boxes: SandboxPool) -> None:
    """Each program is the first to read a file, whose cached pages keep the group that they are charged to."""
    for path in SMALL:
        await read(boxes, path)
    kept = dying()
    assert kept
    assert max(kept) < len(SMALL) - 8


async def test_what_sockets_hold_counts(boxes: SandboxPool) -> None:
    code = b"""
import socket
held = []
for _ in range(400):
    held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    held[-1].bind(("127.0.0.1", 0))
    for _ in range(8): held[-1].sendto(bytes(32 << 10), held[-1].getsockname())
"""
    limits = replace(CONFIG.policy().defaults, memory_bytes=32 * MIB, open_files=1000)
    plan = Plan(("main.py",), {}, limits, "python-base", Mode.MAIN, (InputFile("main.py", code),))
    async with boxes.take(plan) as sandbox:
        report = await sandbox.run()
    assert report.code == 0 or report.oom_kills
    assert 24 * MIB < report.peak_bytes <= 36 * MIB, "the kernel lets sockets pass the limit by some per cent"
