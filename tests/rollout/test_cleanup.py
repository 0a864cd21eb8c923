"""Cleanup runs to its end, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from rollout.cleanup import to_its_end


async def test_work_goes_to_its_end_however_often_its_caller_is_cancelled() -> None:
    begun, go_on, ended = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        begun.set()
        await go_on.wait()
        ended.append(True)

    caller = asyncio.ensure_future(to_its_end(work()))
    await begun.wait()
    for _ in range(3):
        caller.cancel()
        await asyncio.sleep(0)
    assert not caller.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == [True]


async def test_failure_is_raised_and_the_cancellation_before_it() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await to_its_end(fail())
    caller = asyncio.ensure_future(to_its_end(fail()))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_work_without_end_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    stopped: list[bool] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    await to_its_end(hang(), within_s=0.05)
    assert stopped == [True]
    assert "gave up after 0.05 s of cleaning up" in caplog.text
