"""Gain of asynchronous training over the synchronous loop, with tools as slow as the model and as uneven as real tools.

Both train the same practice policy (1.8 million weights) with the loop of `fairbox train`, the real limiter and
executor, the same settings and seeds, for the same number of trajectories. Two kinds of waiting are added:

- each turn takes as long as a served model would take for its tokens (`PACE` a second for each sequence). In
  production, rollouts have GPUs of their own; here they share two cores with the update, which costs several times
  their CPU, so that overlapping the two could gain nothing beyond the second core;
- each call of the tool is delayed by a draw from a log-normal distribution (sigma 1: one in a hundred takes 6 times the
  mean) whose mean is the time to generate a trajectory at that pace. Draws come from one seeded generator, in the order
  of the calls.

A synchronous step waits for the longest of 64 trajectories and then for its update; an asynchronous one takes those
that have ended while 64 others are played. The policy is warmed up to call in half of its trajectories, so that there
are delays from the first step on. The first run writes the practice policy, which takes two minutes.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import random
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console

from benchmarks.rows import Row, figure, median
from examples.practice import WarmUp, write_practice
from fairbox.config import setting
from rollout.build import open_loop
from rollout.config import EngineSettings
from rollout.dump import read_dump
from rollout.engines import GenerationRequest, GenerationResult
from rollout.engines.weights import WeightedEngine
from rollout.envs.base import EnvironmentSetup
from rollout.envs.gsm8k import Gsm8kConfig, Gsm8kEnvironment
from rollout.loop import Limits
from rollout.stack import LocalStack
from rollout.tools.base import ToolResponse
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
from rollout.tools.registry import ToolSpec
from rollout.training.algo.objective import CorrectionSettings, ObjectiveSettings
from rollout.training.config import TrainConfig, TrainSampling
from rollout.training.learner.checkpoints import CheckpointStore
from rollout.training.learner.learner import Learner
from rollout.training.learner.policy import Policy
from rollout.training.learner.sync import WeightSync
from rollout.training.learner.update import UpdateSettings
from rollout.training.rollouts.loops import OwnLoop
from rollout.training.rollouts.stream import RolloutStream
from rollout.training.run.metrics import METRICS, MetricLog
from rollout.training.run.trainer import Trainer

STEPS = 20
LAST = 4
"""Steps whose mean reward is that of the end: 256 trajectories."""
PACE = 12.0
"""Tokens a second of a sequence. A conversation of 20 ids, which it makes last two seconds, stands for one of hundreds
at the pace of a served model: rollouts are then some four fifths of a synchronous step, as they are in earnest."""
PER_STEP, SAMPLES = 8, 8
SEEDS = (1,)
STALENESS = 1
"""The least bound with which rollouts go on beside an update."""
SIGMA = 1.0
LONGEST = 30.0
"""Means of the delay that one takes at most, so that a single draw decides nothing."""
EQUAL = 0.05
"""Final rewards are means of 256 that are 0 or 1: two of them differ by 0.025 in the standard deviation where their
expectation is 0.91."""
LIMIT = 16
"""Programs that run at once; each takes some milliseconds."""
FOLDER = Path(__file__).parent / "out" / "practice"


@dataclass(frozen=True)
class SlowInterpreterConfig(CodeInterpreterConfig):
    """Settings."""

    delay_s: float = setting(0.0, help="Mean delay of a call.")
    delay_seed: int = setting(0, help="Of the draws.")


class SlowInterpreter(CodeInterpreter):
    """The code interpreter behind a delay."""

    config_type = SlowInterpreterConfig

    def __init__(self, config: SlowInterpreterConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self._mean_s = config.delay_s
        self._draws = random.Random(config.delay_seed)

    async def execute(
        self, trajectory_id: str, arguments: Mapping[str, Any], *, time_limit_s: float | None = None
    ) -> ToolResponse:
        drawn = math.exp(self._draws.gauss(-SIGMA * SIGMA / 2, SIGMA))
        await asyncio.sleep(self._mean_s * min(drawn, LONGEST))
        return await super().execute(trajectory_id, arguments, time_limit_s=time_limit_s)


class PacedEngine:
    """The engine of a run, whose turns take at least as long as `PACE` says. Everything else is the engine's own."""

    def __init__(self, engine: WeightedEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        began = time.monotonic()
        result = await self._engine.generate(request)
        await asyncio.sleep(len(result.ids) / PACE - (time.monotonic() - began))
        took = time.monotonic() - began - result.queue_s
        return replace(result, run_s=took)


@dataclass(frozen=True)
class Ran:
    """Result of a run."""

    per_min: float
    """Trajectories that were trained on in a minute, from the first one's start to the last step's end."""
    reward: float
    """Mean of the last steps."""
    generated_s: float
    """Mean time that the engine took for a trajectory of the last step that called the tool."""
    figures: dict[str, float]
    """Means over the steps."""


def _config(practice: Path, out: Path, mode: str, seed: int, steps: int) -> TrainConfig:
    level = "token" if mode == "async" else "none"
    return TrainConfig(
        data=str(practice / "train.jsonl"),
        max_staleness=STALENESS if mode == "async" else 0,
        steps=steps,
        prompts_per_step=PER_STEP,
        samples_per_prompt=SAMPLES,
        concurrency=PER_STEP * SAMPLES,
        save_every=steps,
        model=str(practice / "model"),
        out=str(out),
        limits=Limits(max_turns=2, max_turn_tokens=32),
        sampling=TrainSampling(temperature=1.0, seed=seed),
        engine=EngineSettings(max_batch=PER_STEP * SAMPLES, max_model_tokens=256),
        loss=ObjectiveSettings(correction=CorrectionSettings(level=level)),
        update=UpdateSettings(lr=2e-4),
    )


async def _run(stack: LocalStack, practice: Path, mode: str, *, seed: int, steps: int, delay_s: float) -> Ran:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        config = _config(practice, out, mode, seed, steps)
        config.validate()
        environment = Gsm8kEnvironment(Gsm8kConfig(prompt="data"), EnvironmentSetup(data=practice / "train.jsonl"))
        tool = SlowInterpreterConfig(num_workers=64, rate_limit=LIMIT, delay_s=delay_s, delay_seed=seed)
        specs = (ToolSpec("tool", SlowInterpreter, tool),)
        policy = await asyncio.to_thread(Policy.load, practice / "model", config.policy, seed=seed)
        learner, ports = Learner(policy, config.learner()), stack.ports
        model = practice / "model"
        async with open_loop(config, model, specs=specs, executor=ports.executor, limiter=ports.limiter) as loop:
            engine = cast("WeightedEngine", PacedEngine(cast("WeightedEngine", loop.engine)))
            loop, sync = replace(loop, engine=engine), WeightSync(engine, policy, folder=None)
            playing = OwnLoop(loop)
            source = RolloutStream(config, playing, environment, sync, out=out, steps_done=0)
            checkpoints = CheckpointStore(out / "checkpoints", keep=1)
            with MetricLog(out, Console(file=io.StringIO()), after=-1) as log:
                trainer = Trainer(
                    config, learner, playing, source, sync, out=out, checkpoints=checkpoints, log=log, settings={}
                )
                assert await trainer.run(asyncio.Event())
        return _read(out, steps)


def _read(out: Path, steps: int) -> Ran:
    lines = [json.loads(line) for line in (out / METRICS).read_text(encoding="utf-8").splitlines()]
    first, last = ([*read_dump(out / "rollouts" / f"{step}.jsonl")] for step in (1, steps))
    # The dump's clock and the file's are the same; the checkpoint behind the last step is no part of it.
    spent = (out / METRICS).stat().st_mtime - min(record["started_at"] for record in first)
    assert not any(line["masked"] for line in lines)
    ends = lines[-min(LAST, steps) :]
    generated = [record["timings"]["engine_s"] for record in last if record["tool_calls"]]
    names = {name for line in lines for name in line}
    return Ran(
        per_min=60 * sum(line["trajectories"] for line in lines) / spent,
        reward=sum(line["reward"] for line in ends) / len(ends),
        generated_s=sum(generated) / len(generated),
        figures={name: sum(line.get(name) or 0.0 for line in lines) / len(lines) for name in names},
    )


async def rows() -> list[Row]:
    torch.set_num_threads(1)  # what other threads would gain on so small a model they lose by waiting for each other
    if not FOLDER.exists():
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(write_practice, FOLDER, WarmUp(call_share=0.5), seed=0)
    async with LocalStack(limiter_args=[f"buckets.code.max_in_flight={LIMIT}"]) as stack:
        alone = await _run(stack, FOLDER, "sync", seed=9, steps=2, delay_s=0.0)
        delay_s = alone.generated_s
        ran: dict[str, list[Ran]] = {"sync": [], "async": []}
        for seed in SEEDS:
            for mode, found in ran.items():
                found.append(await _run(stack, FOLDER, mode, seed=seed, steps=STEPS, delay_s=delay_s))
    return _rows(ran["sync"], ran["async"], delay_s)


def _rows(sync: list[Ran], asynchronous: list[Ran], delay_s: float) -> list[Row]:
    delays = f"a turn's tokens at {PACE:g}/s, tool delays of {delay_s:.2f} s in the mean, sigma {SIGMA:g}"
    load = f"{STEPS} steps of {PER_STEP * SAMPLES} trajectories, {delays}"
    ratio = median([fast.per_min / slow.per_min for slow, fast in zip(sync, asynchronous, strict=True)])
    gain = median([fast.reward - slow.reward for slow, fast in zip(sync, asynchronous, strict=True)])

    def mean(runs: list[Ran], name: str) -> float:
        return sum(run.figures[name] for run in runs) / len(runs)

    return [
        figure("async over sync: trajectories a minute", ratio, "x", least=1.8, against=f"sync, {load}"),
        figure("async less sync: final reward", gain, "", least=-EQUAL, against=f"sync, last {LAST} steps"),
        figure("sync: trajectories a minute", median([run.per_min for run in sync]), "/min", against=load),
        figure("async: trajectories a minute", median([run.per_min for run in asynchronous]), "/min", against=load),
        figure("sync: final reward", median([run.reward for run in sync]), ""),
        figure("async: final reward", median([run.reward for run in asynchronous]), ""),
        figure("sync: rollouts of a step", mean(sync, "time/rollouts_s"), "s"),
        figure("sync: update of a step", mean(sync, "time/update_s"), "s"),
        figure("async: trainer waits for a step", mean(asynchronous, "time/rollouts_s"), "s"),
        figure("async: update of a step", mean(asynchronous, "time/update_s"), "s", against="while rollouts go on"),
        figure("async: staleness", mean(asynchronous, "async/staleness_mean"), "steps", against=f"at most {STALENESS}"),
        figure("async: share of time without a turn", mean(asynchronous, "async/engine_idle"), ""),
    ]


PARTS = {"modes": rows}
