"""The synchronous training loop: weights to the engine, rollouts, rewards, an update; again.

Invariants: a step's trajectories are all sampled by the weights of its beginning, whose version each token says; the
weights go to the engine before every step, so that its caches hold nothing that a resumed run would not have; after a
crash the run goes on from the newest checkpoint as if it had never stopped. Trajectories that the service failed are
masked; a run whose service is gone ends with a sentence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairbox.errors import FairboxError
from fairbox.serving import until_stopped
from rollout.batch import RolloutBatch
from rollout.dump import DumpWriter, record_of
from rollout.envs.base import Environment
from rollout.loop.agent_loop import AgentLoop, turn_seed
from rollout.loop.groups import RetryBudget, Schedule
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import RolloutRunner
from rollout.loop.task import Task
from rollout.training.checkpoints import CheckpointError, CheckpointStore
from rollout.training.config import TrainConfig
from rollout.training.learner import Diverged, Learner
from rollout.training.metrics import MetricLog
from rollout.training.order import step_tasks
from rollout.training.sync import WeightSync

__all__ = ["Evaluation", "Trainer"]

_LOG = logging.getLogger("fairbox.training")
MAX_BARREN_STEPS = 3
"""So many steps in a row whose trajectories the service failed, all of them, end a run: it learns nothing and costs."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out tasks. They are played once each, and never trained on."""

    environment: Environment
    tasks: Sequence[Task]


class Trainer:
    """`await Trainer(...).run(stop)`. `learner` is at the step that the newest checkpoint has, or at its beginning."""

    def __init__(
        self,
        config: TrainConfig,
        learner: Learner,
        loop: AgentLoop,
        environment: Environment,
        sync: WeightSync,
        *,
        out: Path,
        checkpoints: CheckpointStore,
        log: MetricLog,
        settings: Mapping[str, Any],
        evaluation: Evaluation | None = None,
    ) -> None:
        self._config = config
        self._learner = learner
        self._loop = loop
        self._environment = environment
        self._tasks = list(environment.tasks())
        self._sync = sync
        self._out = out
        self._checkpoints = checkpoints
        self._log = log
        self._settings = settings
        self._evaluation = evaluation
        self._saved = learner.steps_done
        self._barren = 0
        if config.prompts_per_step > len(self._tasks):
            given = f"prompts_per_step is {config.prompts_per_step}, must be at most {len(self._tasks)}"
            raise FairboxError(f"{given}, the number of problems")

    async def run(self, stop: asyncio.Event) -> bool:
        """Until the last step; whether it got there. With `stop` set it ends at the next chance, with a checkpoint of
        the last whole step. Raises FairboxError where it can't go on."""
        if self._learner.steps_done == 0 and self._evaluation is not None:
            figures = await self._evaluate(self._evaluation, stop)
            if figures is None:
                return False
            self._log.write(0, figures)
        while self._learner.steps_done < self._config.steps:
            if not await self._step(stop):
                self._save_if_new()
                return False
        self._save_if_new()
        return True

    async def _step(self, stop: asyncio.Event) -> bool:
        """One step; False when `stop` came before its update."""
        step, began = self._learner.steps_done + 1, time.monotonic()
        await self._sync.push(step - 1)
        results = await self._rollouts(step, stop)
        if results is None:
            return False
        rolled = time.monotonic()
        figures = await self._update(results)
        figures |= {"time/rollouts_s": rolled - began, "time/update_s": time.monotonic() - rolled}
        if self._evaluation is not None and step % self._config.eval_every == 0:
            figures |= await self._evaluate(self._evaluation, stop) or {}
        self._log.write(step, figures)
        if self._saved < step - step % self._config.save_every:
            self._save_or_warn()
        self._watch(figures, results)
        return not stop.is_set()

    async def _rollouts(self, step: int, stop: asyncio.Event) -> list[TrajectoryResult] | None:
        config = self._config
        numbers = step_tasks(
            step, tasks=len(self._tasks), per_step=config.prompts_per_step, seed=config.sampling.seed or 0
        )
        tasks = [self._tasks[number] for number in numbers]
        return await self._play(
            self._loop, self._environment, tasks, stop, step=step, folder="rollouts", schedule=config.schedule()
        )

    async def _play(
        self,
        loop: AgentLoop,
        environment: Environment,
        tasks: Sequence[Task],
        stop: asyncio.Event,
        *,
        step: int,
        folder: str,
        schedule: Schedule,
    ) -> list[TrajectoryResult] | None:
        """Every trajectory of the tasks, in order; None when `stop` came before."""
        results: list[TrajectoryResult] = []
        with DumpWriter(self._out / folder, step) as dump:

            def sink(result: TrajectoryResult, task: Task) -> None:
                name, decode = loop.engine.model_name, loop.chat.decode_plain
                dump.write(record_of(result, task, step=step, model=name, decode=decode))
                results.append(result)

            runner = RolloutRunner(
                loop,
                environment.score,
                sink,
                schedule=schedule,
                retries=RetryBudget(self._config.infra_retries, self._config.infra_retries_total),
                seed=turn_seed(self._config.sampling.seed, step),
                score_timeout_s=self._config.score_timeout_s,
            )
            if not await until_stopped(stop, runner.run(tasks)):
                return None
        return sorted(results, key=lambda result: result.index)

    async def _update(self, results: Sequence[TrajectoryResult]) -> dict[str, float]:
        batch = RolloutBatch.from_results(results, pad_token_id=0)
        try:
            # Off the loop, and to its end: a step that is cut off half way is no step.
            return await asyncio.to_thread(self._learner.step, batch)
        except Diverged as error:
            try:
                path = self._checkpoints.save(
                    self._learner.steps_done, self._learner.state(), self._settings, name="diverged"
                )
                kept = f"the weights before that are in {path}"
            except CheckpointError as failed:
                kept = str(failed)
            raise Diverged(
                f"{error}; {kept}; to go on from step {self._saved}, change what made it so (update.lr, "
                "loss.policy.clip_high, update.max_grad_norm) in a new run"
            ) from None

    async def _evaluate(self, evaluation: Evaluation, stop: asyncio.Event) -> dict[str, float] | None:
        """Plays the held-out tasks with the weights of now: its figures, or None when `stop` came before its end."""
        step, began = self._learner.steps_done, time.monotonic()
        await self._sync.push(step)
        sampling = replace(self._loop.sampling, temperature=self._config.eval_temperature)
        results = await self._play(
            replace(self._loop, sampling=sampling),
            evaluation.environment,
            evaluation.tasks,
            stop,
            step=step,
            folder="evaluations",
            schedule=Schedule(concurrency=self._config.concurrency, samples_per_prompt=1),
        )
        if results is None:
            return None
        rewards = [result.reward.value for result in results if result.reward is not None]
        return {
            "eval/reward": sum(rewards) / len(rewards) if rewards else float("nan"),
            "eval/masked": float(len(results) - len(rewards)),
            "time/evaluation_s": time.monotonic() - began,
        }

    def _watch(self, figures: Mapping[str, float], results: Sequence[TrajectoryResult]) -> None:
        """Raises FairboxError when the service has failed too many steps in a row."""
        self._barren = self._barren + 1 if figures["masked"] == figures["trajectories"] else 0
        if self._barren == MAX_BARREN_STEPS:
            self._save_if_new()
            why = next((result.error for result in results if result.error), "no reason is known")
            raise FairboxError(f"every trajectory of the last {self._barren} steps failed by the service: {why}")

    def _save(self) -> None:
        self._checkpoints.save(self._learner.steps_done, self._learner.state(), self._settings)
        self._saved = self._learner.steps_done

    def _save_or_warn(self) -> None:
        """A disk that is full is no reason to lose what was learned since: the next step tries again."""
        try:
            self._save()
        except CheckpointError as error:
            _LOG.warning("%s; tried again after the next step", error)

    def _save_if_new(self) -> None:
        if self._saved < self._learner.steps_done:
            self._save()
