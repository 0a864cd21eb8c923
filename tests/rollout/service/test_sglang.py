"""A rollout service whose engine is a real sglang server: both are killed, and no trajectory suffers from it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from fairbox.net.ports import free_ports
from rollout.engines.sglang.launch import local_servers
from rollout.loop import TrajectoryResult
from rollout.service import RolloutClient, RolloutTask, TrajectoryStream
from rollout.stack import LocalStack
from tests.rollout.service.test_program import served
from tests.rollout.sglang_servers import listener, on_cpu

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

TASKS = [RolloutTask(f"t{n}", problem=n % 2, seed=n) for n in range(12)]


async def taken(stream: TrajectoryStream, found: dict[str, TrajectoryResult], number: int) -> None:
    """Returns when there are so many; each comes once."""
    while len(found) < number:
        trajectory = await anext(stream)
        assert trajectory.id not in found
        found[trajectory.id] = trajectory.result
        await stream.acknowledge(trajectory.id)


async def test_engine_and_service_are_killed_and_every_trajectory_is_whole(tmp_path: Path, tiny_dir: Path) -> None:
    port, health, *_ = free_ports(2)
    found: dict[str, TrajectoryResult] = {}
    async with (
        local_servers(on_cpu(tiny_dir, replicas=1, restarts=2)) as urls,
        LocalStack() as stack,
        RolloutClient(f"127.0.0.1:{port}", unavailable_after=600.0) as rollouts,
        rollouts.stream() as stream,
    ):
        (url,) = urls.values()
        words = (
            *(f"listen=127.0.0.1:{port}", f"health_listen=127.0.0.1:{health}", f"out={tmp_path / 'out'}"),
            *(f"limiter={stack.ports.limiter}", f"executor={stack.ports.executor}", "limits.max_turn_tokens=200"),
            *(f"model={tiny_dir}", "engine.kind=sglang", f"engine.urls=[{url}]"),
        )
        async with asyncio.timeout(600):
            async with served(*words) as first:
                assert (await rollouts.submit(TASKS)).accepted == len(TASKS)
                await taken(stream, found, 2)
                os.kill(await asyncio.to_thread(listener, url), signal.SIGKILL)
                await taken(stream, found, 6)
                os.kill(first.pid, signal.SIGKILL)
                await first.wait()
            async with served(*words):
                await taken(stream, found, len(TASKS))
                assert [each.resumed_total > 0 for each in (await rollouts.status()).values()] == [True]
    for result in found.values():
        assert not result.masked, result.error
        assert len(result.trajectory.logprobs) == sum(result.trajectory.response_mask) > 0
