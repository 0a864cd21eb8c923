"""The training loop: trajectories, an update, other weights; again.

Trajectories come from a `RolloutStream`: played for each step, or all the time beside the updates.
Invariants: the weights move by whole steps; a checkpoint is of a whole step, with what the rollouts need to go on
behind it; after a crash the run goes on from the newest one. Trajectories that the service failed are masked; a run
whose service is gone ends with a sentence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client.metrics_core import Metric

from fairbox.errors import FairboxError
from rollout.batch import RolloutBatch
from rollout.dump import DumpError, trainer_file, write_trainer_logprobs
from rollout.envs.base import Environment
from rollout.loop.results import TrajectoryResult
from rollout.training.config import TrainConfig
from rollout.training.learner.checkpoints import CheckpointError, CheckpointStore
from rollout.training.learner.learner import Diverged
from rollout.training.learner.model_folder import WritableModel
from rollout.training.learner.sync import WeightSync
from rollout.training.rollouts.loops import TrainingLoop
from rollout.training.rollouts.play import play
from rollout.training.rollouts.stream import RolloutStream
from rollout.training.run.metrics import MetricLog, trainer_metrics

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger("fairbox.training")


class AnyLearner(Protocol):
    """Interface of the learners that a trainer takes, wherever their model is. Its methods block."""

    steps_done: int

    @property
    def logprobs(self) -> torch.Tensor:
        """float32 [B, R]: what the weights before the latest step gave the ids of its batch."""
        ...

    @property
    def policy(self) -> WritableModel:
        """The model that is trained."""
        ...

    def step(self, batch: RolloutBatch) -> dict[str, float]:
        """Trains on a batch and returns its figures by name. Raises Diverged, and FairboxError if it can't go on."""
        ...

    def state(self) -> Mapping[str, Any] | Callable[[Path], None]:
        """Everything that the next step depends on, or a function that writes it."""
        ...


class Trainer:
    """`await Trainer(...).run(stop)`. `learner` and `source` are at the newest checkpoint, or at their beginning. Tasks
    of `held_out` are played once each in an evaluation, and never trained on."""

    def __init__(
        self,
        config: TrainConfig,
        learner: AnyLearner,
        loop: TrainingLoop,
        source: RolloutStream,
        sync: WeightSync,
        *,
        out: Path,
        checkpoints: CheckpointStore,
        log: MetricLog,
        settings: Mapping[str, Any],
        held_out: Environment | None = None,
    ) -> None:
        self._config = config
        self._learner = learner
        self._loop = loop
        self._source = source
        self._sync = sync
        self._out = out
        self._checkpoints = checkpoints
        self._log = log
        self._settings = settings
        self._held_out = held_out
        self._saved = learner.steps_done
        self._figures: Mapping[str, float] = {}

    def metrics(self) -> Iterator[Metric]:
        """Progress of the run, for Prometheus."""
        done, steps = self._learner.steps_done, self._config.steps
        return trainer_metrics(step=done, steps=steps, saved=self._saved, figures=self._figures)

    async def run(self, stop: asyncio.Event) -> bool:
        """Trains until the last step; says whether it got there. With `stop` set it ends at the next chance, with a
        checkpoint of the last whole step. Raises FairboxError if it can't go on."""
        async with self._source:
            try:
                return await self._run(stop)
            except Diverged:
                raise
            except FairboxError:
                await self._save_or_warn()
                raise

    async def _run(self, stop: asyncio.Event) -> bool:
        if self._held_out is not None and not await self._evaluate_first(self._held_out, stop):
            return False
        while self._learner.steps_done < self._config.steps:
            if not await self._step(stop):
                await self._save_if_new()
                return False
        await self._save_if_new()
        return True

    async def _evaluate_first(self, held_out: Environment, stop: asyncio.Event) -> bool:
        """Runs the evaluation before training, or the one of the last step if that was cut off; False if `stop` is set
        before its end."""
        step = self._learner.steps_done
        if step and (step % self._config.eval_every or not self._log.lacks(step, "eval/reward")):
            return True
        if step:
            (self._out / "evaluations" / f"{step}.jsonl").unlink(missing_ok=True)  # what it had played
        figures = await self._evaluate(held_out, stop)
        if figures is None:
            return False
        if step:
            self._figures = figures
            self._log.add(figures)
        else:
            self._write(step, figures)
        return True

    async def _step(self, stop: asyncio.Event) -> bool:
        """Runs one step; False if `stop` is set, before its update or after."""
        step = self._learner.steps_done + 1
        batch = await self._source.batch(step, stop)
        if batch is None:
            return False
        rolled = time.monotonic()
        figures = await self._update(batch.results)
        figures |= {**batch.figures, "time/update_s": time.monotonic() - rolled}
        try:
            await self._source.trained(step)
            if self._held_out is not None and step % self._config.eval_every == 0:
                figures |= await self._evaluate(self._held_out, stop) or {}
        finally:
            self._write(step, figures)  # it is done, whatever became of what comes behind it
        if self._saved < step - step % self._config.save_every:
            await self._save_or_warn()
        return not stop.is_set()

    def _write(self, step: int, figures: Mapping[str, float]) -> None:
        self._figures = dict(figures)
        self._log.write(step, figures)

    async def _update(self, results: Sequence[TrajectoryResult]) -> dict[str, float]:
        def step() -> dict[str, float]:
            number, batch = self._learner.steps_done + 1, RolloutBatch.from_results(results, pad_token_id=0)
            figures = self._learner.step(batch)
            try:
                path = trainer_file(self._out, str(number))
                write_trainer_logprobs(path, _parts(batch, self._learner.logprobs))
            except DumpError as error:  # only people look at them: no reason to lose a step
                _LOG.warning("%s", error)
            return figures

        try:
            # Off the loop, and to its end: a step that is cut off half way is no step.
            return await asyncio.to_thread(step)
        except Diverged as error:
            try:
                path = await asyncio.to_thread(self._save_diverged)
                kept = f"the weights before that are in {path}"
            except CheckpointError as failed:
                kept = str(failed)
            raise Diverged(
                f"{error}; {kept}; to go on from step {self._saved}, change what made it so (update.lr, "
                "loss.policy.clip_high, update.max_grad_norm) in a new run"
            ) from None

    def _save_diverged(self) -> Path:
        learner = self._learner
        return self._checkpoints.save(learner.steps_done, learner.state(), self._settings, name="diverged")

    async def _evaluate(self, held_out: Environment, stop: asyncio.Event) -> dict[str, float] | None:
        """Plays the held-out tasks with the current weights: its figures, or None if `stop` is set before its end."""
        step, began = self._learner.steps_done, time.monotonic()
        await self._sync.ensure(step)
        folder = self._out / "evaluations"
        results = await play(self._config, self._loop, held_out, stop, step=step, folder=folder)
        if results is None:
            return None
        rewards = [result.reward.value for result in results if result.reward is not None]
        return {
            "eval/reward": sum(rewards) / len(rewards) if rewards else float("nan"),
            "eval/masked": float(len(results) - len(rewards)),
            "time/evaluation_s": time.monotonic() - began,
        }

    async def _save(self) -> None:
        step, rollouts = self._learner.steps_done, self._source.state()

        def write() -> None:
            self._checkpoints.save(step, self._learner.state(), self._settings, rollouts=rollouts)

        await asyncio.to_thread(write)
        self._saved = step
        await self._source.saved()

    async def _save_or_warn(self) -> None:
        """Saves, or warns: a full disk is no reason to lose what was learned since, and the next step tries again."""
        try:
            await self._save_if_new()
        except CheckpointError as error:
            _LOG.warning("%s; tried again after the next step, if there is one", error)

    async def _save_if_new(self) -> None:
        if self._saved < self._learner.steps_done:
            await self._save()


def _parts(batch: RolloutBatch, logprobs: torch.Tensor) -> Iterator[tuple[str, list[list[float]]]]:
    """Each trajectory's id, and the logprobs of the parts of it; empty ones of a trajectory that is masked."""
    lengths, parts = batch.attention_mask[:, batch.prompts.shape[1] :].sum(1).tolist(), list[list[float]]()
    for row, (name, length) in enumerate(zip(batch.trajectory_ids, lengths, strict=True)):
        parts.append([] if batch.masked[row] else logprobs[row, :length].tolist())
        if batch.is_last_step[row]:
            yield name, parts
            parts = []
