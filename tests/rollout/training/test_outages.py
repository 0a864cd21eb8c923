"""Outages of any service at any moment select nothing: what is trained on calls tools as often as what was asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from executor_service import Cause
from rollout.config import EngineSettings
from rollout.engines import EngineUnavailable, GenerationRequest
from rollout.envs import Environment
from rollout.loop import AgentLoop, Task, TrajectoryResult
from rollout.rewards import Reward
from rollout.stack import LocalStack
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox
from rollout.tools.registry import ToolSpec
from tests.rollout.scripted import tool_call
from tests.rollout.services import interpreter

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.training.algo.objective import CorrectionSettings, ObjectiveSettings  # noqa: E402 - needs torch
from rollout.training.config import TrainConfig  # noqa: E402
from rollout.training.learner.sync import WeightSync  # noqa: E402
from rollout.training.rollouts.loops import OwnLoop  # noqa: E402
from rollout.training.rollouts.stream import RolloutStream  # noqa: E402

PROBLEMS, STEPS, PER_STEP, SAMPLES = 8, 4, 4, 2
"""Two passes over the problems."""
SERVICES = ("executor_service", "limiter", "engine")
MORE = 200
"""Seeds of the long test."""
ALLOWED = 0.01
"""Most that the share of callers may differ from a half over all seeds."""


class Half(Environment):
    """Problems of which every other one calls a tool."""

    def tasks(self) -> list[Task]:
        return [
            Task(f"p{n}", ({"role": "user", "content": "Call." if n % 2 else "Say."},), "", "half", f"half:{n}")
            for n in range(PROBLEMS)
        ]

    def tools(self) -> tuple[ToolSpec, ...]:
        return ()

    async def score(self, task: Task, result: TrajectoryResult) -> Reward:
        return Reward(float(result.final_text.strip() == "done"))


class NoWeights:
    """A model that has none: a scripted engine takes whatever it is given."""

    def write(self, folder: Path, *, for_engine: bool = False) -> None:
        folder.mkdir(parents=True)


@dataclass(frozen=True)
class Outage:
    """One outage."""

    service: str
    killed: bool
    after_s: float
    for_s: float

    @classmethod
    def of(cls, seed: int) -> Outage:
        draw = random.Random(seed)
        return cls(draw.choice(SERVICES), draw.random() < 0.5, draw.uniform(0, 2), draw.choice((0.3, 1.0, 4.0, 9.0)))


class Flaky:
    """An engine's turns. Those that run when it goes away fail; others wait for it, as for servers."""

    def __init__(self, tokenizer: HubTokenizer) -> None:
        self._tokenizer = tokenizer
        self.away = False

    def __call__(self, request: GenerationRequest, turn: int) -> str | Exception:
        if self.away:
            return EngineUnavailable("it is away")
        calls = "Call." in self._tokenizer.decode(request.input_ids)
        return tool_call("code_interpreter", code="print(6 * 7)") if calls and not turn else "done"


async def happens(outage: Outage, stack: LocalStack, engine: ScriptedEngine, script: Flaky) -> None:
    await asyncio.sleep(outage.after_s)
    if outage.service == "engine":
        script.away = True
        await engine.pause()
        await asyncio.sleep(outage.for_s)
        script.away = False
        await engine.resume()
        return
    before = stack.pid(outage.service)
    if outage.killed:  # and started again, which takes as long as it takes
        os.kill(before, signal.SIGKILL)
        return
    os.kill(before, signal.SIGSTOP)
    try:
        await asyncio.sleep(outage.for_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(before, signal.SIGCONT)


@contextlib.asynccontextmanager
async def services() -> AsyncIterator[LocalStack]:
    args = ["max_concurrent=4", "languages=python"]
    async with LocalStack(executor_args=args, limiter_args=["buckets.code.max_in_flight=4"]) as stack, stack.kept():
        yield stack


async def trained(seed: int, chat: ChatTemplate, tokenizer: HubTokenizer, out: Path) -> list[TrajectoryResult]:
    """Everything that a run with the outage of this seed is trained on."""
    outage, script = Outage.of(seed), Flaky(tokenizer)
    found: list[TrajectoryResult] = []
    config = TrainConfig(
        max_staleness=seed % 2,
        prompts_per_step=PER_STEP,
        samples_per_prompt=SAMPLES,
        concurrency=8,
        steps=STEPS,
        engine=EngineSettings(),
        loss=ObjectiveSettings(correction=CorrectionSettings(level="token")),
    )
    async with services() as stack, interpreter(stack) as tool:
        engine = ScriptedEngine(tokenizer, script, vocab_size=49152, delay_s=0.1)
        loop = AgentLoop(engine, chat, Toolbox([tool]), config.limits, config.sampling.params())
        sync = WeightSync(engine, NoWeights(), folder=out / "weights")
        source = RolloutStream(config, OwnLoop(loop), Half(), sync, out=out, steps_done=0)
        breaks = asyncio.create_task(happens(outage, stack, engine, script))
        try:
            async with source, asyncio.timeout(240):
                for step in range(1, STEPS + 1):
                    batch = await source.batch(step, asyncio.Event())
                    assert batch is not None
                    found += batch.results
                    await source.trained(step)
        finally:
            breaks.cancel()
            await asyncio.wait([breaks])
    return found


def checked(results: list[TrajectoryResult]) -> Counter[bool]:
    """Numbers of trajectories that are trained on: with a call of a tool, and without."""
    assert len(results) == STEPS * PER_STEP * SAMPLES
    masked = [result for result in results if result.masked]
    assert all(result.cause is Cause.INFRA for result in masked)
    assert all(result.reward is not None and result.reward.value == 1.0 for result in results if not result.masked)
    return Counter(bool(result.tool_calls) for result in results if not result.masked)


@pytest.mark.parametrize("seed", range(3))
async def test_an_outage_selects_nothing(
    seed: int, chat: ChatTemplate, tokenizer: HubTokenizer, tmp_path: Path
) -> None:
    found = checked(await trained(seed, chat, tokenizer, tmp_path))
    most = STEPS * PER_STEP * SAMPLES
    assert found.total() >= 0.9 * most
    assert abs(found[True] - found[False]) <= 0.1 * most


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_two_hundred_outages_select_nothing(chat: ChatTemplate, tokenizer: HubTokenizer, tmp_path: Path) -> None:
    total: Counter[bool] = Counter()
    for seed in range(MORE):
        found = checked(await trained(seed, chat, tokenizer, tmp_path / str(seed)))
        total += found
        sys.stdout.write(f"{seed} {Outage.of(seed)} {dict(found)}\n")
    share = total[True] / total.total()
    sys.stdout.write(f"callers: {share:.4f} of {total.total()}\n")
    assert abs(share - 0.5) <= ALLOWED
