"""Plays tasks to the last trajectory, as an evaluation does, and dumps what ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from fairbox.serving import until_stopped
from rollout.dump import DumpError, DumpWriter, record_of
from rollout.envs.base import Environment
from rollout.loop.agent_loop import AgentLoop
from rollout.loop.groups import RetryBudget, Schedule
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import RolloutRunner
from rollout.loop.task import Task
from rollout.training.config import TrainConfig
from rollout.training.order import play_seed
from rollout.training.own_weights import OwnWeights

__all__ = ["dump_into", "play"]


async def play(
    config: TrainConfig,
    loop: AgentLoop,
    environment: Environment,
    tasks: Sequence[Task],
    stop: asyncio.Event,
    *,
    step: int,
    folder: Path,
) -> list[TrajectoryResult] | None:
    """One trajectory of each task, in order, dumped into `folder` as they end; None when `stop` came before.
    Raises DumpError."""
    results: list[TrajectoryResult] = []
    with DumpWriter(folder, step) as dump:

        def sink(result: TrajectoryResult, task: Task) -> None:
            dump_into(dump, loop, result, task, step=step)
            results.append(result)

        runner = RolloutRunner(
            OwnWeights(loop),
            environment.score,
            sink,
            schedule=Schedule(concurrency=config.concurrency, samples_per_prompt=1),
            retries=RetryBudget(config.infra_retries, config.infra_retries_total),
            seed=play_seed(config.sampling.seed, step),
            score_timeout_s=config.score_timeout_s,
        )
        try:
            if not await until_stopped(stop, runner.run(tasks)):
                return None
        except ExceptionGroup as group:
            ours, others = group.split(DumpError)
            if ours is None or others is not None:
                raise
            raise ours.exceptions[0] from None
    return sorted(results, key=lambda result: result.index)


def dump_into(dump: DumpWriter, loop: AgentLoop, result: TrajectoryResult, task: Task, *, step: int) -> None:
    """One line. Raises DumpError."""
    dump.write(record_of(result, task, step=step, model=loop.engine.model_name, decode=loop.chat.decode_plain))
