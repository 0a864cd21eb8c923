"""A training run from its settings: model, checkpoint, engine, tools, loop; everything opened here is closed here.

`only_run`: the kernel holds the lock on `out` and lets it go when the process ends, however it ends. A file system
without locks protects nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from rich.console import Console

from executor_service import ExecutorClient
from fairbox.errors import ConfigError, FairboxError
from fairbox.loading import load_apart, until_set
from rollout.build import check_prompts, longest_context, open_loop
from rollout.config import recorded_settings
from rollout.dump import TRAINER
from rollout.envs.base import Environment
from rollout.figures import open_figures
from rollout.rewards import RewardServices
from rollout.service.client import RolloutClient
from rollout.tools.registry.registry import ToolSpec
from rollout.training.config import TrainConfig, changed_settings
from rollout.training.fsdp.learner import open_shards
from rollout.training.fsdp.worker import LearnerPlan
from rollout.training.learner.checkpoints import Checkpoint, CheckpointStore
from rollout.training.learner.model_folder import export_model
from rollout.training.learner.sync import WeightSync
from rollout.training.rollouts.lives import begin_life
from rollout.training.rollouts.loops import OwnLoop, TrainingLoop
from rollout.training.rollouts.service import AWAY_S, ServiceLoop
from rollout.training.rollouts.stream import RolloutStream
from rollout.training.run.boards import WandbSettings
from rollout.training.run.metrics import METRICS, MetricLog
from rollout.training.run.trainer import AnyLearner, Trainer

LOCK = "run.lock"


@contextlib.contextmanager
def only_run(out: Path) -> Iterator[None]:
    """Locks the folder, making it if needed. ConfigError if another run has it, FairboxError if it can't be written."""
    with contextlib.ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((out / LOCK).open("a+", encoding="utf-8"))
        except OSError as error:
            raise FairboxError(f"{out / LOCK}: can't be written: {error.strerror or error}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read(200).strip() or "another process"
            raise ConfigError(f"out is {str(out)!r}, to which another run writes ({who})") from None
        except OSError:
            pass  # no locks here
        with contextlib.suppress(OSError):  # a disk that is full: who holds it is a help, and not the lock
            os.truncate(file.fileno(), 0)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """Everything that a run needs beside the services."""

    config: TrainConfig
    env_settings: Any
    """Settings of the environment, which must not change when the run goes on."""
    environment: Environment
    held_out: Environment | None
    specs: tuple[ToolSpec, ...]
    model_dir: Path
    out: Path

    def settings(self) -> dict[str, Any]:
        """Settings of the run and of its environment, as a checkpoint keeps them."""
        return recorded_settings(self.config, self.env_settings)


async def train(run: TrainingRun, *, executor: str, limiter: str, console: Console, stop: asyncio.Event) -> bool:
    """Trains; says whether it reached the last step. The services are `host:port`. Raises FairboxError, and Interrupted
    if `stop` is set before the first step."""
    config = run.config
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(only_run(run.out))
        checkpoints = CheckpointStore(run.out / "checkpoints", keep=config.keep)
        async with until_set(stop):
            found = await load_apart(partial(newest, run, checkpoints))
            learner = await stack.enter_async_context(open_learner(config, run.model_dir, found, out=run.out))
            after = learner.steps_done
            if found is not None:
                console.print(f"going on after step {after} from {found.path}", soft_wrap=True)
            if config.service.target:
                loop = await stack.enter_async_context(open_service(run, after))
            else:
                loop = await stack.enter_async_context(open_own(run, executor=executor, limiter=limiter))
        if config.resume:
            _forget(run.out, after)
        board = None if config.wandb is None else WandbSettings(config.wandb, run.settings())
        log = stack.enter_context(MetricLog(run.out, console, after=after or -1, wandb=board))
        local = config.engine.kind == "transformers" and not config.service.target
        folder = None if local and config.shards.count == 1 else run.out / "weights"
        timeout_s, life = config.update.push_timeout_s, loop.lives.life
        sync = WeightSync(loop.engine, learner.policy, folder=folder, timeout_s=timeout_s, life=life)
        stack.push_async_callback(sync.close)
        begun = None if found is None else found.rollouts
        source = RolloutStream(config, loop, run.environment, sync, out=run.out, steps_done=after, state=begun)
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
            held_out=run.held_out,
        )
        await stack.enter_async_context(open_figures(config, partial(_metrics, trainer, loop)))
        complete = await trainer.run(stop)
        if complete:
            await asyncio.to_thread(export_model, learner.policy, run.model_dir, run.out / "model")
            await loop.finish()
        return complete


@contextlib.asynccontextmanager
async def open_learner(
    config: TrainConfig, model_dir: Path, checkpoint: Checkpoint | None, *, out: Path
) -> AsyncIterator[AnyLearner]:
    """Opens the learner that the settings ask for. Raises FairboxError for a model that can't be trained, for another
    model's checkpoint, and if shards can't be started."""
    plan = LearnerPlan(
        model_dir,
        config.policy,
        config.learner(),
        value_head=config.needs_value_head,
        reference=config.loss.needs_reference,
        state=None if checkpoint is None else checkpoint.state_path,
    )
    if config.shards.count > 1:
        async with open_shards(plan, config.shards.count, address=config.ray_address, out=out) as sharded:
            yield sharded
    else:
        yield await load_apart(plan.load)


@contextlib.asynccontextmanager
async def open_own(run: TrainingRun, *, executor: str, limiter: str) -> AsyncIterator[TrainingLoop]:
    """The loop of this process, which can play every task. Raises FairboxError."""
    config = run.config
    async with (
        open_loop(config, run.model_dir, executor=executor, limiter=limiter, specs=run.specs) as loop,
        ExecutorClient(executor) as client,
    ):
        environments: list[Environment] = [run.environment, *([] if run.held_out is None else [run.held_out])]
        for environment in environments:
            environment.services = RewardServices(executor=client)
            longest = longest_context(config, loop.engine.max_model_tokens)
            check_prompts(environment.tasks(), loop.chat, loop.tools.schemas, longest=longest)
        yield OwnLoop(loop)


@contextlib.asynccontextmanager
async def open_service(run: TrainingRun, steps_done: int) -> AsyncIterator[TrainingLoop]:
    """A rollout service as the loop of the run. Raises FairboxError."""
    config = run.config
    chat = await load_apart(partial(config.chat.load, run.model_dir))
    where, temperature = config.service, config.sampling.temperature
    async with RolloutClient(where.target, tenant=where.tenant) as probe:
        await probe.status()  # an address that is wrong is said sooner than that of a service that ends later
    lives = await asyncio.to_thread(begin_life, run.out, steps_done)
    async with (
        RolloutClient(where.target, tenant=where.tenant, unavailable_after=AWAY_S) as client,
        ServiceLoop(client, lives, temperature=temperature, decode=chat.decode_plain) as loop,
    ):
        yield loop


def _metrics(trainer: Trainer, loop: TrainingLoop) -> Iterator[Metric]:
    yield from trainer.metrics()
    yield from loop.metrics()


def newest(run: TrainingRun, checkpoints: CheckpointStore) -> Checkpoint | None:
    """The checkpoint to go on from; None: the run begins. Raises ConfigError for settings that changed, and for
    checkpoints that the run is not to go on from."""
    config, found = run.config, checkpoints.latest()
    if not config.resume and (found is not None or (run.out / METRICS).exists()):
        raise ConfigError(f"out is {str(run.out)!r}, which holds a run; set resume to go on with it")
    if found is not None and (changed := changed_settings(found.config, run.settings())):
        raise ConfigError(f"{found.path} was written with other settings: {'; '.join(changed)}")
    return found


def _forget(out: Path, after: int) -> None:
    """Removes what is done again: the dumps of steps after `after`, or of all if the run begins anew."""
    for folder in ("rollouts", "evaluations", TRAINER):
        for path in (out / folder).glob("*"):
            if path.stem.isdigit() and (int(path.stem) > after or after == 0):
                path.unlink()
    shutil.rmtree(out / "weights", ignore_errors=True)
