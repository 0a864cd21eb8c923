"""Loops in the workers of a real Ray cluster: the same trajectories as in one process, and none lost with a worker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairbox.config import check
from fairbox.errors import ConfigError
from rollout.config import RaySpread
from rollout.engines import SamplingParams, find_model
from rollout.loop import AgentLoop, Limits, RolloutRunner, Schedule, Task, TrajectoryResult
from rollout.ray import RayLoops
from rollout.ray import loops as ray_loops
from rollout.rewards import Reward
from rollout.testing import ScriptedEngine, ScriptedTool
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox
from tests.limiter.ray.cluster import ray_cluster

# Ray needs half a minute for a worker on a machine that does other things as well.
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "six"}}\n</tool_call>'
SPREAD = RaySpread(workers=2)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that fit any machine, and have few places."""
    monkeypatch.setattr(ray_loops, "NUM_CPUS", 0.1)
    monkeypatch.setattr(ray_loops, "CAPACITY", 4)


@asynccontextmanager
async def scripted(model_dir: Path, folder: str, delay_s: float) -> AsyncIterator[AgentLoop]:
    """Loop that each worker opens. A file in `folder` shows that it did, and in which process."""
    tokenizer = HubTokenizer(model_dir)
    engine = ScriptedEngine(tokenizer, [CALL, "#### 6"], vocab_size=49152, delay_s=delay_s)
    mark = Path(folder, str(os.getpid()))
    mark.touch()  # noqa: ASYNC240 - nothing waits for it
    tools = Toolbox([ScriptedTool(lambda _: str(os.getpid()))])
    yield AgentLoop(engine, ChatTemplate(tokenizer), tools, Limits(), SamplingParams())
    mark.unlink()  # noqa: ASYNC240


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster():
        yield


def loops(chat: ChatTemplate, folder: Path, *, delay_s: float = 0.01, spread: RaySpread = SPREAD) -> RayLoops:
    factory = partial(scripted, find_model("smollm2"), str(folder), delay_s)
    return RayLoops(factory, spread, chat=chat, sampling=SamplingParams())


def tasks(count: int) -> list[Task]:
    return [Task(str(n), ({"role": "user", "content": f"What? {n}"},), "6", "test", f"here:{n}") for n in range(count)]


async def score(task: Task, result: TrajectoryResult) -> Reward:
    """In the process that was started, not in a worker."""
    await asyncio.sleep(0)
    return Reward(1.0, {"pid": float(os.getpid())})


async def play(spread: RayLoops, count: int, *, retries: int = 2, **options: Any) -> list[TrajectoryResult]:
    results: list[TrajectoryResult] = []
    runner = RolloutRunner(
        spread,
        score,
        lambda result, task: results.append(result),
        schedule=Schedule(**{"concurrency": 8} | options),
        retries=retries,
        seed=1,
    )
    await runner.run(tasks(count))
    return results


def pids(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir()]


async def test_trajectories_are_spread_and_are_those_of_one_process_and_stragglers_are_cancelled(
    chat: ChatTemplate, model_dir: Path, tmp_path: Path
) -> None:
    async with loops(chat, tmp_path, delay_s=0.2) as spread:
        while spread.statistics().ready < 2:
            await asyncio.sleep(0.05)
        results = await play(spread, 12)
        statistics = spread.statistics()
        workers = {result.tool_calls[0].text for result in results}
        first = await play(spread, 1, samples_per_prompt=1, extra_samples=3)
        assert len(first) == 1
        assert spread.statistics().running == 0, "stragglers are cancelled in their workers"
    assert len(workers) == 2
    assert (statistics.running, statistics.lost) == (0, 0)
    async with scripted(model_dir, str(tmp_path), 0.0) as alone:
        for result in results:
            expected = await alone.run(tasks(12)[int(result.uid)], index=result.index, seed=None)
            sampled = [segment for segment in result.trajectory.segments if segment.logprobs]
            assert sampled == [segment for segment in expected.trajectory.segments if segment.logprobs]
            assert result.trajectory.prompt_ids == expected.trajectory.prompt_ids
            assert result.reward == Reward(1.0, {"pid": float(os.getpid())})
    assert pids(tmp_path) == []  # every worker closed its loop


async def test_a_killed_worker_costs_its_own_trajectories_only_and_they_are_run_again(
    chat: ChatTemplate, tmp_path: Path
) -> None:
    async with loops(chat, tmp_path, delay_s=0.3) as spread:
        while spread.statistics().ready < 2:  # else one may have played everything before the other has begun
            await asyncio.sleep(0.05)
        playing = asyncio.create_task(play(spread, 24))
        async with asyncio.timeout(60):
            while spread.statistics().running < 8:
                await asyncio.sleep(0.05)
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        results = await playing
        assert spread.statistics().lost == 1
    assert sorted(result.uid for result in results) == sorted(task.uid for task in tasks(24))
    assert not any(result.masked for result in results)
    again = [result for result in results if result.attempts > 1]
    assert 1 <= len(again) <= 4  # what one worker ran
    assert len({result.trajectory_id for result in results}) == 24


async def test_without_any_worker_trajectories_are_masked_with_the_reason(chat: ChatTemplate, tmp_path: Path) -> None:
    gone = tmp_path / "no-such-folder"
    async with loops(chat, gone, spread=RaySpread(workers=1)) as broken:
        (result,) = await play(broken, 1, retries=0)
        assert broken.statistics().given_up == 1
    assert result.masked
    assert "no-such-folder" in str(result.error)
    assert result.trajectory.prompt_ids == chat.prompt_ids(tasks(1)[0].messages)


def test_bad_numbers_are_named() -> None:
    with pytest.raises(ConfigError, match=r"spread\.workers is 0, must be at least 1"):
        check(RaySpread(workers=0), "spread")
    with pytest.raises(ConfigError, match=r"spread\.num_gpus is nan"):
        check(RaySpread(num_gpus=float("nan")), "spread")
