"""The learner of a run: in this process, or over shards; at its newest checkpoint, or at its beginning."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rollout.batch import RolloutBatch
from rollout.training.checkpoints import Checkpoint
from rollout.training.config import TrainConfig
from rollout.training.model_folder import WritableModel
from rollout.training.shard import LearnerPlan
from rollout.training.sharded import open_shards

__all__ = ["AnyLearner", "open_learner"]


class AnyLearner(Protocol):
    """What a trainer asks of a learner, wherever its model is. Its methods block."""

    steps_done: int

    @property
    def policy(self) -> WritableModel:
        """The model that is trained."""
        ...

    def step(self, batch: RolloutBatch) -> dict[str, float]:
        """Trains on a batch: its figures by name. Raises Diverged, and FairboxError when it can't go on."""
        ...

    def state(self) -> Mapping[str, Any] | Callable[[Path], None]:
        """Everything that the next step depends on, or what writes it."""
        ...


@contextlib.asynccontextmanager
async def open_learner(
    config: TrainConfig, model_dir: Path, checkpoint: Checkpoint | None, *, out: Path
) -> AsyncIterator[AnyLearner]:
    """The one that the settings ask for. Raises FairboxError for a model that can't be trained, for a checkpoint of
    another one, and when shards can't be started."""
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
        yield await asyncio.to_thread(plan.load)
