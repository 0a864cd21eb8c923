"""Brings the trained weights to the engine that samples, under a name of their own."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from rollout.engines.weights import DiskWeights, StateWeights, WeightedEngine
from rollout.training.model_folder import WritableModel
from rollout.training.policy import Policy

__all__ = ["WeightSync", "steps_of", "version_name"]


def version_name(steps_done: int) -> str:
    """Of the weights after so many steps."""
    return f"step-{steps_done}"


def steps_of(version: str) -> int:
    """After how many steps the weights are from that `version_name` called so. ValueError for other names."""
    name, _, number = version.rpartition("-")
    if name != "step":
        raise ValueError(f"{version!r} is no version of a training run")
    return int(number)


class WeightSync:
    """`folder` None is for an engine in this process, which copies the weights of a `Policy` in it; servers, and the
    weights of a policy elsewhere, take the way over a folder below `folder`, which must be at the same path on all of
    their machines."""

    def __init__(self, engine: WeightedEngine, policy: WritableModel, *, folder: Path | None) -> None:
        self._engine = engine
        self._policy = policy
        self._folder = folder

    @property
    def version(self) -> str:
        """That turns are sampled with now."""
        return self._engine.weight_version

    async def ensure(self, steps_done: int) -> None:
        """`push`, unless the engine has these weights."""
        if self._engine.weight_version != version_name(steps_done):
            await self.push(steps_done)

    async def push(self, steps_done: int) -> str:
        """The version that turns are sampled with from now on. What was cached under other weights is forgotten.

        Raises FairboxError when the engine can't take them.
        """
        version = version_name(steps_done)
        if self._folder is None:
            assert isinstance(self._policy, Policy)
            await self._engine.update_weights(StateWeights(self._policy.state()), version=version)
            return version
        path = (self._folder / version).absolute()
        try:
            # Off the loop: the turns and tool calls of trajectories go on while gigabytes are written.
            await asyncio.to_thread(self._policy.write, path)
            await self._engine.update_weights(DiskWeights(path), version=version)
        finally:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        return version
