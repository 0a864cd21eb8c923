"""Whole training runs whose trajectories a rollout service plays: real weights, a real engine, ends on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import ConfigError, FairboxError
from fairbox.net.ports import free_ports
from rollout.config import EngineSettings
from rollout.dump import read_dump
from rollout.envs.registry import find_environment
from rollout.loop import Limits
from rollout.service import RolloutClient
from rollout.service.config import ServiceConfig
from tests.rollout.training.vowels import VowelsConfig

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.service.app import serve  # noqa: E402
from rollout.training.config import ServiceSettings, TrainConfig  # noqa: E402 - needs torch
from rollout.training.run.run import TrainingRun  # noqa: E402
from tests.rollout.training.runs import finished, lines, vowels_run  # noqa: E402
from tests.rollout.training.test_async import CONFIG, each_problem_once_a_pass  # noqa: E402

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def config(tiny_dir: Path, tmp_path: Path) -> ServiceConfig:
    port, health = free_ports(2)
    return ServiceConfig(
        env="vowels",
        model=str(tiny_dir),
        out=str(tmp_path / "service"),
        listen=f"127.0.0.1:{port}",
        health_listen=f"127.0.0.1:{health}",
        limits=Limits(max_turn_tokens=24),
        engine=EngineSettings(max_batch=6, max_model_tokens=128),
        concurrency=6,
    )


@contextlib.asynccontextmanager
async def serving(config: ServiceConfig) -> AsyncIterator[None]:
    """A service in this process, until the block is left."""
    config.validate()
    stop = asyncio.Event()
    task = asyncio.ensure_future(serve(config, find_environment("vowels"), VowelsConfig(), stop))
    try:
        yield
    finally:
        stop.set()
        await task


def run_over(config: ServiceConfig, out: Path, **changes: Any) -> TrainingRun:
    usual = TrainConfig()
    service = ServiceSettings(config.listen)
    base = replace(CONFIG, service=service, limits=usual.limits, engine=usual.engine)
    return vowels_run(base, Path(config.model), out, **changes)


def versions(out: Path, step: int) -> set[str]:
    return {
        part["weight_version"]
        for record in read_dump(out / "rollouts" / f"{step}.jsonl")
        for part in record["segments"]
        if part["weight_version"] is not None
    }


async def left(config: ServiceConfig) -> int:
    """Trajectories that are at the service."""
    async with RolloutClient(config.listen) as client:
        found = await client.status()
    tenants = [tenant for status in found.values() for tenant in status.tenants]
    return sum(each.queued + each.running + each.ended for each in tenants)


async def test_it_is_training(config: ServiceConfig, tmp_path: Path) -> None:
    """While its rollouts run ahead; the run below has them in turn with its steps."""
    out = tmp_path / "run"
    async with serving(config):
        assert await finished(run_over(config, out))
        assert await left(config) == 0
    each_problem_once_a_pass(out, 6)
    found = lines(out)
    assert [line["step"] for line in found] == [*range(7)]
    assert all(line["trained_rows"] == 6 and line["grad_norm"] > 0 for line in found[1:])
    assert [line["step"] for line in found if "eval/reward" in line] == [0, 3, 6]
    for step in range(1, 7):
        names = versions(out, step)
        assert names <= {f"step-{n}" for n in range(max(0, step - 3), step)}
    fresh = [line for line in found[1:] if line["async/lag_0"]]
    assert fresh
    assert max(line["logprob_difference_max"] for line in fresh) < 1e-4  # the engine has the trainer's weights
    assert any(0 <= line["async/engine_idle"] < 1 for line in found[1:])
    assert not list((out / "weights").glob("*"))


async def test_both_may_end_in_the_middle(config: ServiceConfig, tmp_path: Path) -> None:
    out, stop = tmp_path / "run", asyncio.Event()

    async def behind(step: int) -> None:
        async with asyncio.timeout(120):
            while len(lines(out)) <= step:
                await asyncio.sleep(0.01)

    async with serving(config):
        first = asyncio.ensure_future(finished(run_over(config, out, steps=1000, max_staleness=0), stop))
        await behind(1)
    async with serving(config):  # started again
        await behind(3)
        stop.set()
        assert not await first
        done = lines(out)[-1]["step"]
        last = done + 2 + done % 2  # which is the end of a pass
        assert await finished(run_over(config, out, steps=last, max_staleness=0, resume=True, save_every=2))
        assert await left(config) == 0
    each_problem_once_a_pass(out, last)
    assert [line["step"] for line in lines(out)] == [*range(last + 1)]
    assert json.loads((out / "lives.json").read_text())["begins"] == [0, done]
    assert versions(out, last) == {f"step-{last - 1}.2"}
    assert all(line["masked"] == 0 for line in lines(out)[1:])


async def test_replicas_share_it(config: ServiceConfig, tmp_path: Path) -> None:
    """One of them ends in the middle."""
    port, health = free_ports(2)
    other = replace(
        config, out=str(tmp_path / "other"), listen=f"127.0.0.1:{port}", health_listen=f"127.0.0.1:{health}"
    )
    both = replace(config, listen=f"{config.listen},{other.listen}")
    out = tmp_path / "run"
    async with serving(config):
        async with serving(other):
            run = asyncio.ensure_future(finished(run_over(both, out, max_staleness=0, save_every=10)))
            async with asyncio.timeout(120):
                while len(lines(out)) < 3:
                    await asyncio.sleep(0.01)
        async with serving(other):
            assert await run
            assert await left(both) == 0
    each_problem_once_a_pass(out, 6)
    for step in range(1, 7):
        assert versions(out, step) == {f"step-{step - 1}"}
    assert all(line["masked"] == 0 for line in lines(out)[1:])


async def test_a_service_that_is_not_there_is_a_sentence(
    config: ServiceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout.training.run.run.RolloutClient", partial(RolloutClient, unavailable_after=0.3))
    with pytest.raises(FairboxError, match=f"no rollout service on {config.listen}"):
        await finished(run_over(config, tmp_path / "run"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"limits": Limits(max_turns=2)}, "limits is set, which has no meaning with service.target"),
        ({"engine": EngineSettings(max_batch=3)}, "engine is set, which has no meaning with service.target"),
        ({"executor": "127.0.0.1:1"}, "executor is set, which has no meaning with service.target"),
        ({"sampling": replace(CONFIG.sampling, top_p=0.5)}, "sampling.top_p is set, but with service.target it is the"),
        ({"service": ServiceSettings(tenant="a")}, "service.tenant is set, which has no meaning without"),
    ],
)
def test_settings_of_the_service_are_refused(
    config: ServiceConfig, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run_over(config, tmp_path, **changes)
