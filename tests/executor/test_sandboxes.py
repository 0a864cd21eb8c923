"""Boxes with real sandboxes, where what the kernel delivers comes late."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor_service.app import open_boxes
from executor_service.config import ExecutorConfig
from executor_service.guest.walls import landlock
from executor_service.model import InputFile
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import Mode, Plan, Report
from fairbox.clock import MonotonicClock
from tests.executor.levels import PYTHON

PROFILE = "python-base"
CONFIG = ExecutorConfig(
    isolation="landlock",
    min_isolation="landlock",
    cgroups="none",
    spare_boxes=2,
    python=PYTHON or "",
    languages="python",
)
pytestmark = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")


@pytest.fixture
async def boxes(tmp_path: Path) -> AsyncIterator[SandboxPool]:
    async with open_boxes(CONFIG, MonotonicClock(), str(tmp_path)) as (_, opened, _):
        yield opened


def plan(code: str) -> Plan:
    files = (InputFile("main.py", code.encode()),)
    return Plan(("main.py",), {}, CONFIG.policy().defaults, PROFILE, Mode.MAIN, files)


async def run(boxes: SandboxPool, code: str) -> Report:
    async with boxes.take(plan(code)) as sandbox:
        return await sandbox.run()


async def until(what: Any) -> None:
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.01)


async def test_a_box_that_is_to_end_is_given_to_nobody(boxes: SandboxPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its init may be busy with the end of a use, and ready for the next, before it learns of it."""
    await until(lambda: boxes.statistics()[PROFILE].ready == 2)
    late: list[tuple[int, int]] = []
    async with boxes.take(plan("print(1)")) as sandbox:
        doomed = sandbox.box
        with monkeypatch.context() as patched:
            patched.setattr(signal, "pidfd_send_signal", lambda handle, number: late.append((handle, number)))
            doomed.kill()
        assert (await sandbox.run()).stdout.data == b"1\n"
    await until(lambda: doomed.use == 2)  # its init has said that it is ready
    await until(lambda: (boxes.statistics()[PROFILE].pending, boxes.statistics()[PROFILE].ready) == (0, 2))
    for _ in range(5):
        assert (await run(boxes, "print(2)")).stdout.data == b"2\n"
    assert doomed.use == 2
    ((handle, number),) = late
    signal.pidfd_send_signal(handle, number)
    await until(lambda: (boxes.statistics()[PROFILE].pending, boxes.statistics()[PROFILE].ready) == (0, 3))


async def test_a_box_that_is_ready_already_is_given_to_nobody_either(
    boxes: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await until(lambda: boxes.statistics()[PROFILE].ready == 2)
    late: list[tuple[int, int]] = []
    async with boxes.take(plan("print(1)")) as sandbox:
        doomed = sandbox.box
        assert (await sandbox.run()).stdout.data == b"1\n"
        await until(lambda: doomed.use == 2)
        with monkeypatch.context() as patched:
            patched.setattr(signal, "pidfd_send_signal", lambda handle, number: late.append((handle, number)))
            doomed.kill()
    for _ in range(5):
        assert (await run(boxes, "print(2)")).stdout.data == b"2\n"
    assert doomed.use == 2
    signal.pidfd_send_signal(*late[0])
    await until(lambda: (boxes.statistics()[PROFILE].pending, boxes.statistics()[PROFILE].ready) == (0, 3))


@pytest.mark.parametrize("isolation", ["landlock", "namespaces"])
async def test_a_box_that_is_given_up_before_it_is_there_costs_no_other(tmp_path: Path, isolation: str) -> None:
    """A zygote that comes late answers on a socket which the server has closed."""
    config = replace(CONFIG, isolation=isolation)
    async with open_boxes(config, MonotonicClock(), str(tmp_path)) as (_, boxes, _):
        await until(lambda: boxes.statistics()[PROFILE].ready == 2)
        shelf = boxes._shelves[PROFILE]
        zygote = shelf.slot.zygote
        assert zygote is not None
        async with boxes.take(plan("print(1)")) as sandbox:
            signal.pidfd_send_signal(zygote._inner, signal.SIGSTOP)
            before = {*shelf.boxes}
            for _ in range(3):
                boxes._make(shelf, zygote)
            given_up = shelf.boxes - before
            await until(lambda: all(box._control is not None for box in given_up))
            for box in given_up:
                box.kill()
            await until(lambda: all(box._control is None for box in given_up))
            signal.pidfd_send_signal(zygote._inner, signal.SIGCONT)
            assert (await sandbox.run()).stdout.data == b"1\n"
        for _ in range(5):
            assert (await run(boxes, "print(2)")).stdout.data == b"2\n"
        assert shelf.slot.zygote is zygote


async def test_the_death_of_an_init_is_said(boxes: SandboxPool, caplog: pytest.LogCaptureFixture) -> None:
    await until(lambda: boxes.statistics()[PROFILE].ready == 2)
    async with boxes.take(plan("print(1)")) as sandbox:
        signal.pidfd_send_signal(sandbox.box._init, signal.SIGKILL)
        await until(lambda: "killed by signal 9" in caplog.text)
