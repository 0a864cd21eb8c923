"""One of the processes that hold a model together: an actor with its part of a learner.

Invariants: all shards are sent the same calls in the same order, and each takes its part in every collective of a call,
whatever becomes of its own share; what a call found out is an answer, so that an exception always means a defect.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from fairbox.errors import FairboxError
from fairbox.ports import free_port
from rollout.batch import RolloutBatch
from rollout.training.learner import Diverged, Learner, LearnerSettings
from rollout.training.peers import Ranks
from rollout.training.policy import Policy, PolicySettings
from rollout.training.sharding import split

__all__ = ["Answer", "Outcome", "Shard", "ShardPlan"]


class Outcome(StrEnum):
    """What became of a call."""

    DONE = "done"
    """`value` is its result."""
    DIVERGED = "diverged"
    """A loss or a gradient is not finite; `value` says which. The weights have not moved."""
    FAILED = "failed"
    """Something that a person can change, which `value` says: a folder, a disk, a model."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one shard to one call."""

    outcome: Outcome
    value: Any = None


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """What all shards are made of."""

    model_dir: Path
    policy: PolicySettings
    learner: LearnerSettings
    value_head: bool
    reference: bool
    state: Path | None
    """State of a checkpoint to go on from; None: from the beginning."""


class Shard:
    """What Ray runs. Its methods are called one after the other."""

    def __init__(self) -> None:
        self._learner: Learner | None = None

    def place(self) -> tuple[str, int, int]:
        """(address of this machine, a free port there, this process)."""
        import ray

        host = ray.util.get_node_ip_address()
        return host, free_port(host), os.getpid()

    def sees(self, path: Path) -> bool:
        """Whether a file is there, seen from this machine."""
        return path.exists()

    def join(self, plan: ShardPlan, *, rank: int, count: int, meet: str, timeout_s: float) -> Answer:
        """Meets the others and takes its part of the model, and of the checkpoint."""
        on_gpu = torch.device(plan.policy.device).type == "cuda"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            init_method=f"tcp://{meet}",
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=timeout_s),
        )
        peers, mesh = Ranks(), init_device_mesh("cuda" if on_gpu else "cpu", (count,))
        try:
            policy = Policy.load(
                plan.model_dir,
                plan.policy,
                value_head=plan.value_head,
                reference=plan.reference,
                seed=plan.learner.seed,
                peers=peers,
                split=partial(split, mesh=mesh, device=plan.policy.device, dtype=plan.policy.dtype),
            )
            self._learner = Learner(policy, plan.learner, peers=peers)
            if plan.state is not None:
                # Mapped, so that of the whole state this process reads the parts that it takes.
                self._learner.load_state(torch.load(plan.state, map_location="cpu", weights_only=True, mmap=True))
        except (FairboxError, OSError) as error:
            return Answer(Outcome.FAILED, str(error))
        return Answer(Outcome.DONE, self._learner.steps_done)

    def step(self, batch: RolloutBatch) -> Answer:
        """As `Learner.step`: the figures, the same at each."""
        try:
            return Answer(Outcome.DONE, self._its().step(batch))
        except Diverged as error:
            return Answer(Outcome.DIVERGED, str(error))

    def write_state(self, path: Path) -> Answer:
        """Writes what a checkpoint keeps; the first shard does, of all parts."""
        state = self._its().state()
        if dist.get_rank() == 0:
            try:
                with path.open("wb") as file:
                    torch.save(state, file)
            except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
                return Answer(Outcome.FAILED, reason)
        return Answer(Outcome.DONE)

    def write_model(self, folder: Path) -> Answer:
        """Writes the model that an engine takes; the first shard does."""
        try:
            self._its().policy.write(folder)
        except FairboxError as error:
            return Answer(Outcome.FAILED, str(error))
        return Answer(Outcome.DONE)

    def _its(self) -> Learner:
        assert self._learner is not None, "it has not joined"
        return self._learner
