"""One of the processes that hold a model together: an actor with its part of a learner.

Invariants: all shards are sent the same calls in the same order, and each takes its part in every collective of a call,
whatever becomes of its own share; what a call found out is an answer, so that an exception always means a defect.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from fairbox.errors import FairboxError
from fairbox.net.ports import free_port
from rollout.batch import RolloutBatch
from rollout.training.learner.checkpoints import read_state, write_failure
from rollout.training.learner.learner import Diverged, Learner, LearnerSettings
from rollout.training.learner.peers import ALONE, Peers, Ranks
from rollout.training.learner.policy import Policy, PolicySettings, Split
from rollout.training.learner.sharding import split


@dataclass(frozen=True, slots=True)
class LearnerPlan:
    """Plan of a learner, for this process or for each shard."""

    model_dir: Path
    policy: PolicySettings
    learner: LearnerSettings
    value_head: bool
    reference: bool
    state: Path | None
    """State of a checkpoint to go on from; None: from the beginning."""

    def load(self, peers: Peers = ALONE, split: Split | None = None) -> Learner:
        """The learner, or with `peers` this process's part of it. Raises FairboxError and OSError."""
        policy = Policy.load(
            self.model_dir,
            self.policy,
            value_head=self.value_head,
            reference=self.reference,
            seed=self.learner.seed,
            peers=peers,
            split=split,
        )
        learner = Learner(policy, self.learner, peers=peers)
        if self.state is not None:
            # Mapped, so that a shard reads of the whole state the parts that it takes.
            learner.load_state(read_state(self.state, mmap=peers.count > 1))
        return learner


class Shard:
    """The actor that Ray runs. Its methods run one after the other. A FairboxError that one of them returns is an
    answer: the weights have not moved, or a person can change the cause, such as a folder, a disk or a model."""

    def __init__(self) -> None:
        self._learner: Learner | None = None

    def place(self) -> tuple[str, int, int]:
        """(address of this machine, a free port there, this process)."""
        import ray

        host = ray.util.get_node_ip_address()
        return host, free_port(host), os.getpid()

    def sees(self, path: Path) -> bool:
        """Says whether a file is there, seen from this machine."""
        return path.exists()

    def join(self, plan: LearnerPlan, *, rank: int, count: int, meet: str, timeout_s: float) -> int | FairboxError:
        """Meets the others and takes its part of the model, and of the checkpoint: the steps that are done."""
        on_gpu = torch.device(plan.policy.device).type == "cuda"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            init_method=f"tcp://{meet}",
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=timeout_s),
        )
        mesh = init_device_mesh("cuda" if on_gpu else "cpu", (count,))
        parts = partial(split, mesh=mesh, device=plan.policy.device, dtype=plan.policy.dtype)
        try:
            self._learner = plan.load(Ranks(), parts)
        except (FairboxError, OSError) as error:
            return FairboxError(str(error))
        return self._learner.steps_done

    def step(self, batch: RolloutBatch) -> tuple[dict[str, float], torch.Tensor] | Diverged:
        """Runs `Learner.step`: its figures and its logprobs, which are the same at each shard."""
        try:
            return self._its().step(batch), self._its().logprobs
        except Diverged as error:
            return error

    def write_state(self, path: Path) -> FairboxError | None:
        """Writes what a checkpoint keeps: the first shard writes all parts."""
        state = self._its().state()
        if dist.get_rank() == 0:
            try:
                with path.open("wb") as file:
                    torch.save(state, file)
            except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
                return FairboxError(write_failure(error))
        return None

    def write_model(self, folder: Path, for_engine: bool) -> FairboxError | None:
        """Writes the model that an engine takes: the first shard writes it."""
        try:
            self._its().policy.write(folder, for_engine=for_engine)
        except FairboxError as error:
            return FairboxError(str(error))
        return None

    def _its(self) -> Learner:
        assert self._learner is not None, "it has not joined"
        return self._learner
