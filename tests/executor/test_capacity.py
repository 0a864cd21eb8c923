"""Machines with many processors or few open files: a burst of programs waits for its turn, and none is lost to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from executor_service import ExecutorClient, Outcome
from executor_service.app import open_boxes
from executor_service.config import ExecutorConfig
from executor_service.machine.capacity import fitted
from executor_service.sandbox.report import SandboxFailure
from fairbox.clock import MonotonicClock
from tests.executor.servers import running
from tests.executor.test_sandboxes import CONFIG, PROFILE, plan, until

ROOM = 1 << 40
MANY = ExecutorConfig(max_concurrent=1024, max_sessions=256)


def limited(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, soft))


@pytest.mark.parametrize(("soft", "programs", "sessions"), [(1024, 27, 26), (4096, 155, 154), (16_384, 1024, 256)])
def test_programs_and_sessions_are_as_many_as_the_open_files_hold(
    soft: int, programs: int, sessions: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limited(monkeypatch, soft)
    found = fitted(MANY, ROOM)
    assert (found.max_concurrent, found.max_sessions) == (programs, sessions)
    lowered = "max_concurrent is 27 and not 1024, max_sessions 26 and not 256: no more fit into 1024 open files"
    assert (lowered in caplog.text) == (soft == 1024)
    limited(monkeypatch, 16_384)
    assert fitted(found, ROOM) == found


def test_a_server_without_sessions_has_all_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 1024)
    assert fitted(replace(MANY, max_sessions=0), ROOM).max_concurrent == 53
    limited(monkeypatch, 128)
    few = fitted(MANY, ROOM)
    assert (few.max_concurrent, few.max_sessions) == (1, 0)


async def test_a_burst_waits_until_the_zygote_takes_its_requests() -> None:
    burst = 150  # a socket holds some sixty
    with running(f"max_concurrent={burst}") as server:
        async with ExecutorClient(server.target) as client:
            results = await asyncio.gather(
                *(client.execute("import time; time.sleep(0.5); print(1)", timeout=60) for _ in range(burst))
            )
    assert {result.outcome for result in results} == {Outcome.FINISHED}


@contextlib.contextmanager
def only(left: int) -> Iterator[None]:
    """Context in which this process can open so many files, and no more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open("/dev/null", os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(held[0]))
        for _ in range(left):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for handle in held:
            os.close(handle)


async def test_without_open_files_a_run_fails_and_the_server_goes_on(tmp_path: Path) -> None:
    async with open_boxes(replace(CONFIG, spare_boxes=0), MonotonicClock(), str(tmp_path)) as (_, boxes, _):

        async def run(code: str) -> str:
            async with boxes.take(plan(code)) as sandbox:
                return (await sandbox.run()).stdout.text

        too_few = (0, 2, 4)  # no socket; no pidfd or streams; not all of the streams
        for left in too_few:
            await until(lambda: boxes.statistics()[PROFILE].ready == 0)
            with only(left), pytest.raises(SandboxFailure, match="open files"):
                await run("print(1)")
        for _ in too_few:  # boxes that were asked for meanwhile
            with contextlib.suppress(SandboxFailure):
                await run("")
        assert await run("print(2)") == "2\n"
