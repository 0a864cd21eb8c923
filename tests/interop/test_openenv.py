"""Word problems as an environment of OpenEnv: `examples/openenv_server.py` as a process, and OpenEnv's own client."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("openenv", reason="openenv is not installed: make test-interop")

from openenv.core.generic_client import GenericEnvClient

from fairbox.net.ports import free_port
from rollout.data import read_rows
from rollout.stack import LocalStack
from tests.rollout.services import executor_status, nothing_left

pytestmark = [pytest.mark.openenv, pytest.mark.asyncio(loop_scope="module")]
ROOT = Path(__file__).parents[2]


@contextmanager
def serving(*settings: str) -> Iterator[str]:
    """Address of the server, as people start it."""
    port = free_port()
    command = [sys.executable, "-m", "examples.openenv_server", f"port={port}", *settings]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            deadline = time.monotonic() + 120
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    async with LocalStack() as started:
        yield started


@pytest.fixture(scope="module")
def url(stack: LocalStack) -> Iterator[str]:
    ports = stack.ports
    with serving(f"tool.executor={ports.executor}", f"tool.limiter={ports.limiter}", "max_episodes=2") as address:
        yield address


@asynccontextmanager
async def episode(url: str, **reset: Any) -> AsyncIterator[tuple[Any, Any]]:
    async with GenericEnvClient(base_url=url) as client:
        yield client, (await client.reset(**reset)).observation


async def test_code_runs_and_the_answer_is_scored(url: str, stack: LocalStack) -> None:
    truth = next(iter(read_rows(None))).ground_truth
    async with episode(url, index=0) as (client, seen):
        assert "####" in seen["prompt"]
        step = await client.step({"code": "print(6 * 7)"})
        assert (step.observation["output"].strip(), step.observation["outcome"]) == ("42", "ok")
        assert (step.reward, step.done) == (None, False)
        failed = await client.step({"code": "1 / 0"})
        assert "ZeroDivisionError" in failed.observation["output"]
        assert failed.observation["outcome"] == "program_error"
        assert truth not in str(await client.state())
        right = await client.step({"answer": f"#### {truth}"})
        assert (right.reward, right.done) == (1.0, True)
        with pytest.raises(RuntimeError, match="reset first"):
            await client.step({"answer": "#### 1"})
        await client.reset(index=0)
        assert (await client.step({"answer": "#### -1"})).reward == 0.0
    await nothing_left(stack)


async def test_a_seed_draws_the_same_problem(url: str) -> None:
    found = set()
    for seed in (1, 2, 3, 4, 1):
        async with episode(url, seed=seed) as (_, seen):
            found.add((seed, seen["prompt"]))
    assert len(found) == 4


@pytest.mark.parametrize(
    ("action", "sentence"),
    [({}, "must have code or answer"), ({"code": "1", "answer": "1"}, "not both"), ({"x": 1}, "VALIDATION_ERROR")],
)
async def test_bad_actions_are_refused_and_the_episode_goes_on(url: str, action: Any, sentence: str) -> None:
    async with episode(url, index=0) as (client, _):
        with pytest.raises(RuntimeError, match=sentence):
            await client.step(action)
        assert (await client.step({"code": "print(1)"})).observation["output"].strip() == "1"


async def test_more_clients_than_may_play_are_refused(url: str) -> None:
    async with episode(url, index=0), episode(url, index=0):
        with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
            async with episode(url, index=0):
                pass


async def test_a_client_that_goes_away_leaves_nothing(stack: LocalStack) -> None:
    ports = stack.ports
    with serving(f"tool.executor={ports.executor}", f"tool.limiter={ports.limiter}", "tool.mode=session") as url:
        async with episode(url, index=0) as (client, _):
            await client.step({"code": "x = 1"})
            assert (await client.step({"code": "print(x)"})).observation["output"].strip() == "1"
            assert (await executor_status(stack)).sessions == 1
        await nothing_left(stack)


async def test_problems_that_are_not_there_are_named(url: str) -> None:
    async with GenericEnvClient(base_url=url) as client:
        with pytest.raises(RuntimeError, match="index is 100000, must be 0 to "):
            await client.reset(index=100_000)


async def test_a_service_that_is_away_is_no_reward() -> None:
    with serving(
        "tool.executor=127.0.0.1:9", "tool.limiter=127.0.0.1:9", "tool.outage_timeout=1", "tool.queue_timeout=1"
    ) as url:
        async with episode(url, index=0) as (client, _):
            with pytest.raises(RuntimeError):
                await client.step({"code": "print(1)"})


async def test_unknown_settings_are_errors() -> None:
    command = [sys.executable, "-m", "examples.openenv_server", "ports=1"]
    ended = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
    _, said = await asyncio.wait_for(ended.communicate(), 60)
    assert ended.returncode == 1
    assert said.decode().startswith("openenv_server: ")
    assert "ports" in said.decode()
