"""An executor that is full or away: asked again under the same id, within a bound, and never a zero."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from executor_service import Cause, ExecutorClient, Limits
from fairbox.net.ports import free_port
from rollout.rewards import NotScored, RewardServices, Sample, find_reward
from rollout.rewards.code import grading
from tests.executor.servers import Server, running, wait_for

DOUBLE = json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})
ANSWER = Sample("```python\nprint(2 * int(input()))\n```", DOUBLE)


async def test_an_executor_that_stays_away_is_infra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "PATIENCE_S", 1.5)
    async with ExecutorClient(f"127.0.0.1:{free_port()}") as client:
        with pytest.raises(NotScored, match="given up") as raised:
            await find_reward("code_stdio")(ANSWER, RewardServices(executor=client))
    assert raised.value.cause is Cause.INFRA


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """An executor with one place to run in and one to wait in."""
    with running("max_concurrent=1", "max_queued=1") as server:
        yield server


async def test_a_full_executor_is_asked_again_until_it_has_room(server: Server) -> None:
    async with ExecutorClient(server.target) as client:
        busy = [asyncio.create_task(client.execute("import time; time.sleep(60)", limits=Limits(wall_time_s=90)))]
        await asyncio.to_thread(wait_for, lambda: server.status().running == 1)
        busy.append(asyncio.create_task(client.execute("print(1)")))
        await asyncio.to_thread(wait_for, lambda: server.status().queued == 1)
        score = asyncio.create_task(find_reward("code_stdio")(ANSWER, RewardServices(executor=client)))
        await asyncio.sleep(0.5)
        assert not score.done()
        busy[0].cancel()
        assert (await score).value == 1.0
        await asyncio.gather(*busy, return_exceptions=True)


async def test_cancelling_a_score_leaves_nothing(server: Server) -> None:
    async with ExecutorClient(server.target) as client:
        sample = Sample("```python\nwhile True: pass\n```", DOUBLE)
        score = asyncio.create_task(
            find_reward("code_stdio")(sample, RewardServices(executor=client), wall_time_s=60.0)
        )
        await asyncio.to_thread(wait_for, lambda: server.status().running == 1)
        score.cancel()
        with pytest.raises(asyncio.CancelledError):
            await score
        await asyncio.to_thread(wait_for, lambda: server.status().running == 0)
