"""Builders and entries of the compile cache, without a sandbox: the test decides how each compiler ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from executor_service.config import ExecutorConfig
from executor_service.model import FileStatus, Outcome, Output, OutputFile, RunRequest
from executor_service.programs.compiler import Build, Compiler
from executor_service.sandbox.report import Killed, Plan, Report

POLICY = ExecutorConfig().policy()
ROOM = 1 << 20


def report(size: int, killed: Killed = Killed.NOT) -> Report:
    made = OutputFile("main", FileStatus.RETURNED, bytes(size), size)
    return Report(killed, 0, 9 if killed else 0, Output(), Output(), files=(made,))


class Runs:
    """Runs that compile, each until it is told what came out."""

    def __init__(self, max_bytes: int = ROOM) -> None:
        planner = SimpleNamespace(
            compilation=lambda request, limits: Plan((request.code.decode(),), {}, limits, "python-base")
        )
        self.compiler = Compiler(cast("Any", planner), versions={}, maxima=POLICY.maxima, max_bytes=max_bytes)
        self.compiling: list[asyncio.Future[Report]] = []

    async def _in_sandbox(self, plan: Plan) -> Report:
        self.compiling.append(asyncio.get_running_loop().create_future())
        return await self.compiling[-1]

    async def start(self, code: str) -> asyncio.Task[Build]:
        request = RunRequest(code.encode(), "c", POLICY.defaults)
        task = asyncio.create_task(self.compiler.build(request, self._in_sandbox))
        await asyncio.sleep(0)
        return task

    async def compiled(self, code: str, size: int = 1) -> bool:
        """Builds the code, and says whether it had to be compiled."""
        before = len(self.compiling)
        task = await self.start(code)
        if len(self.compiling) > before:
            self.compiling[-1].set_result(report(size))
        await task
        return len(self.compiling) > before


async def test_when_the_builder_leaves_the_longest_waiting_builds() -> None:
    runs = Runs()
    tasks = [await runs.start("a") for _ in range(4)]
    status = runs.compiler.status()
    assert (status.building, status.waiting, len(runs.compiling)) == (1, 3, 1)
    tasks[1].cancel()
    tasks[0].cancel()
    await asyncio.wait(tasks[:2])
    await asyncio.sleep(0)
    assert len(runs.compiling) == 2
    runs.compiling[1].set_result(report(7))
    second, third = await asyncio.gather(*tasks[2:])
    assert second.compilation is not None
    assert third.compilation is not None
    assert (second.compilation.cached, third.compilation.cached) == (False, True)
    status = runs.compiler.status()
    assert (status.entries, status.building, status.hits_total, status.built_total) == (1, 0, 1, 1)


async def test_one_whose_compiler_fails_leaves_nothing_behind() -> None:
    runs = Runs()
    task = await runs.start("a")
    runs.compiling[0].set_exception(ValueError("no sandbox"))
    with pytest.raises(ValueError, match="no sandbox"):
        await task
    assert runs.compiler.status().building == 0
    assert await runs.compiled("a")


async def test_an_end_by_a_limit_is_shared_by_those_who_wait_and_not_kept() -> None:
    runs = Runs()
    tasks = [await runs.start("a") for _ in range(3)]
    runs.compiling[0].set_result(report(0, Killed.WALL))
    for number, build in enumerate(await asyncio.gather(*tasks)):
        assert build.compilation is not None
        assert (build.compilation.outcome, build.compilation.cached) == (Outcome.TIME_LIMIT, number > 0)
        assert "longer than" in build.message
    assert (len(runs.compiling), runs.compiler.status().entries) == (1, 0)
    assert await runs.compiled("a")


async def test_without_room_every_run_compiles() -> None:
    runs = Runs(max_bytes=0)
    assert [await runs.compiled("a") for _ in range(2)] == [True, True]


async def test_the_least_recently_used_goes_first() -> None:
    runs = Runs(max_bytes=2 * 1025)  # two of one byte each, with what an entry costs
    assert [await runs.compiled(code) for code in "abaca"] == [True, True, False, True, False]
    assert await runs.compiled("b")
    assert runs.compiler.status().evicted_total == 2


async def test_what_is_larger_than_all_the_room_is_not_kept_and_evicts_nothing() -> None:
    runs = Runs()
    assert await runs.compiled("a")
    assert await runs.compiled("b", 2 * ROOM)
    assert [await runs.compiled(code, 2 * ROOM) for code in "ab"] == [False, True]
