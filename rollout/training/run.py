"""A training run from its settings: model, checkpoint, engine, tools, loop; everything opened here is closed here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from executor_service import ExecutorClient
from fairbox.errors import ConfigError
from rollout.build import check_prompts, longest_context, open_loop
from rollout.engines.weights import WeightedEngine
from rollout.envs.base import Environment, EnvironmentWithServices
from rollout.figures import open_figures, service_metrics
from rollout.rewards import RewardServices
from rollout.tools.registry import ToolSpec
from rollout.training.boards import WandbSettings
from rollout.training.checkpoints import CheckpointStore
from rollout.training.config import TrainConfig, changed_settings, flat_settings
from rollout.training.learner import Learner
from rollout.training.metrics import METRICS, MetricLog
from rollout.training.policy import Policy
from rollout.training.source import StepRollouts, TrajectorySource
from rollout.training.stream import RolloutStream
from rollout.training.sync import WeightSync, export_model
from rollout.training.trainer import Evaluation, Trainer

__all__ = ["TrainingRun", "restore", "train"]


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What a run needs beside the services."""

    config: TrainConfig
    env_settings: Any
    """Settings of the environment, which must not change when the run goes on."""
    environment: Environment
    held_out: Environment | None
    specs: tuple[ToolSpec, ...]
    model_dir: Path
    out: Path

    def settings(self) -> dict[str, Any]:
        """Of everything, as a checkpoint keeps them."""
        found = flat_settings(self.config) | flat_settings(self.env_settings, "env_config.")
        plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
        return plain


async def train(run: TrainingRun, *, executor: str, limiter: str, console: Console, stop: asyncio.Event) -> bool:
    """Whether the last step was reached. The services are `host:port`. Raises FairboxError."""
    config = run.config
    checkpoints = CheckpointStore(run.out / "checkpoints", keep=config.keep)
    learner, begun = await asyncio.to_thread(restore, run, checkpoints, console)
    after = learner.steps_done
    async with contextlib.AsyncExitStack() as stack:
        loop = await stack.enter_async_context(
            open_loop(config, run.model_dir, executor=executor, limiter=limiter, specs=run.specs)
        )
        figures = open_figures(config, lambda: service_metrics(loop.engine.statistics(), loop.tools.statistics()))
        await stack.enter_async_context(figures)
        client = await stack.enter_async_context(ExecutorClient(executor))
        held_out = run.held_out
        environments: list[Environment] = [run.environment, *([] if held_out is None else [held_out])]
        for environment in environments:
            if isinstance(environment, EnvironmentWithServices):
                environment.use(RewardServices(executor=client))
            longest = longest_context(config, loop.engine.max_model_tokens)
            check_prompts(environment.tasks(), loop.chat, loop.tools.schemas, longest=longest)
        if config.resume:
            _forget(run.out, after)
        board = None if config.wandb is None else WandbSettings(config.wandb, run.settings())
        log = stack.enter_context(MetricLog(run.out, console, after=after or -1, wandb=board))
        engine = cast("WeightedEngine", loop.engine)
        folder = None if config.engine.kind == "transformers" else run.out / "weights"
        sync = WeightSync(engine, learner.policy, folder=folder)
        source: TrajectorySource
        if config.mode == "async":
            source = RolloutStream(config, loop, run.environment, sync, out=run.out, steps_done=after, state=begun)
        else:
            source = StepRollouts(config, loop, run.environment, sync, out=run.out)
        trainer = Trainer(
            config,
            learner,
            loop,
            source,
            sync,
            out=run.out,
            checkpoints=checkpoints,
            log=log,
            settings=run.settings(),
            evaluation=None if held_out is None else Evaluation(held_out, list(held_out.tasks())),
        )
        complete = await trainer.run(stop)
        if complete:
            await asyncio.to_thread(export_model, learner.policy, run.model_dir, run.out / "model")
        return complete


def restore(
    run: TrainingRun, checkpoints: CheckpointStore, console: Console
) -> tuple[Learner, Mapping[str, Any] | None]:
    """The learner at its newest checkpoint, with what its rollouts had begun by then, or at its beginning. Raises
    ConfigError for settings that changed, and for checkpoints that the run is not to go on from."""
    config, found = run.config, checkpoints.latest()
    if not config.resume and (found is not None or (run.out / METRICS).exists()):
        raise ConfigError(f"out is {str(run.out)!r}, which holds a run; set resume to go on with it")
    if found is not None and (changed := changed_settings(found.config, run.settings())):
        raise ConfigError(f"{found.path} was written with other settings: {'; '.join(changed)}")
    policy = Policy.load(
        run.model_dir,
        config.policy,
        value_head=config.advantage.estimator == "gae",
        reference=config.loss.needs_reference,
        seed=config.sampling.seed or 0,
    )
    learner = Learner(policy, config.learner())
    if found is None:
        return learner, None
    learner.load_state(found.state)
    console.print(f"going on after step {found.step} from {found.path}", soft_wrap=True)
    return learner, found.state.get("rollouts")


def _forget(out: Path, after: int) -> None:
    """Removes what is done again: the dumps of steps after `after`, or of all where the run begins anew."""
    for folder in ("rollouts", "evaluations"):
        for path in (out / folder).glob("*.jsonl"):
            if path.stem.isdigit() and (int(path.stem) > after or after == 0):
                path.unlink()
    shutil.rmtree(out / "weights", ignore_errors=True)
