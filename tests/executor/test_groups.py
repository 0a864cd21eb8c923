"""Control groups: nobody waits for what one program leaves charged to its group, and the next one does not pay."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor_service.config import ExecutorConfig
from executor_service.model import InputFile, Limits
from executor_service.sandbox.box import Box
from executor_service.sandbox.boxes import Boxes
from executor_service.sandbox.report import Mode, Plan, Report
from executor_service.server.app import open_boxes
from fairbox.clock import MonotonicClock
from tests.executor.servers import GROUPS

MIB = 1 << 20
CONFIG = ExecutorConfig(cgroups=GROUPS, spare_boxes=0, languages="python")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/sys/fs/cgroup/memory/tasks").exists(), reason="groups of version 1 need root"
)
NAMES = """
import os, sys
name = os.path.dirname(os.__file__) + "/" + os.urandom(90).hex()
for number in range(int(sys.argv[1])):
    try: os.stat(name + str(number))
    except OSError: pass
"""
_touched: list[str] = []
"""Files of control groups that the thread of the event loop has opened, made or removed."""


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    on_loop = event in ("open", "os.mkdir", "os.rmdir") and threading.current_thread() is threading.main_thread()
    if on_loop and str(arguments[0]).startswith("/sys/fs/cgroup/"):
        _touched.append(str(arguments[0]))


sys.addaudithook(_listen)


@pytest.fixture
async def boxes(tmp_path: Path) -> AsyncIterator[Boxes]:
    async with open_boxes(CONFIG, MonotonicClock(), str(tmp_path)) as (_, opened, _):
        yield opened


@pytest.fixture
def touched() -> list[str]:
    _touched.clear()
    return _touched


async def run(boxes: Boxes, names: int, **limits: Any) -> tuple[Report, Box]:
    files = (InputFile("main.py", NAMES.encode()),)
    wanted: Limits = replace(CONFIG.policy().defaults, wall_time_s=120.0, cpu_time_s=120.0, **limits)
    async with boxes.take(Plan(("main.py", str(names)), {}, wanted, "python-base", Mode.MAIN, files)) as sandbox:
        return await sandbox.run(), sandbox.box


async def test_no_file_of_a_control_group_is_touched_on_the_event_loop(touched: list[str], tmp_path: Path) -> None:
    async with open_boxes(CONFIG, MonotonicClock(), str(tmp_path)) as (_, boxes, _):
        for memory_bytes in (64 * MIB, 256 * MIB):
            assert (await run(boxes, 1, memory_bytes=memory_bytes, processes=9))[0].code == 0
    assert touched == []


async def test_a_box_with_leftovers_of_the_kernel_is_given_to_nobody(boxes: Boxes) -> None:
    """Names that were looked for in vain stay in the memory of the kernel, charged to the group of their program."""
    first, its_box = await run(boxes, 1)
    assert (await run(boxes, 1))[1] is its_box, "a box in which nothing is left is used again"
    hostile, its_box = await run(boxes, 200_000)
    assert hostile.peak_bytes > 64 * MIB
    after, another_box = await run(boxes, 1, memory_bytes=32 * MIB)
    assert another_box is not its_box
    assert after.peak_bytes < first.peak_bytes + 8 * MIB


async def test_what_sockets_hold_counts(boxes: Boxes) -> None:
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
        assert (await sandbox.run()).code == 0
        groups = sandbox.box.groups
        assert groups is not None
        most = int((groups.folders["memory"] / "memory.kmem.tcp.max_usage_in_bytes").read_text())
    assert 24 * MIB < most <= 32 * MIB
