"""Brings the trained weights to the engine that samples, under a name of their own."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import Protocol

from rollout.engines.base import EngineStatistics
from rollout.engines.weights import DiskWeights, StateWeights, WeightSource
from rollout.training.learner.model_folder import WritableModel
from rollout.training.learner.policy import Policy

_VERSION = re.compile(r"step-([0-9]+)(?:\.([0-9]+))?")


def version_name(steps_done: int, life: int = 1) -> str:
    """Name of the weights after so many steps, in the run's first life or a later one."""
    return f"step-{steps_done}" if life == 1 else f"step-{steps_done}.{life}"


def parse_version(name: str) -> tuple[int, int] | None:
    """(steps, life) of a name that `version_name` made; None: it made none such."""
    found = _VERSION.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2] or 1))


class WeightTarget(Protocol):
    """Taker of the weights: an engine, or the service that has one."""

    @property
    def model_name(self) -> str:
        """As `Engine.model_name`."""
        ...

    def statistics(self) -> EngineStatistics:
        """As `Engine.statistics`."""
        ...

    @property
    def weight_version(self) -> str:
        """The version that turns are sampled with now."""
        ...

    async def update_weights(self, source: WeightSource, *, version: str, timeout_s: float = 600.0) -> None:
        """As `WeightedEngine.update_weights`."""
        ...


class WeightSync:
    """Pushes weights. `folder` None is for an engine in this process, which copies the weights of a `Policy` in it;
    servers, and the weights of a policy elsewhere, use a folder below `folder`, which must be at the same path on all
    of their machines. The current weights' folder stays until others replace it: a server that is started again gets
    it. `close` removes it. An engine has `timeout_s` to load them. `life` is the run's."""

    def __init__(
        self,
        engine: WeightTarget,
        policy: WritableModel,
        *,
        folder: Path | None,
        timeout_s: float = 600.0,
        life: int = 1,
    ) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._life = life
        self._policy = policy
        self._folder = folder
        self._pushed = ""
        """Version of the weights that were pushed last."""
        self._kept: Path | None = None
        """Folder of the current weights."""

    async def ensure(self, steps_done: int) -> None:
        """Pushes the weights unless the engine has them, from this run and not from an earlier one by the same name."""
        if not self._pushed == self._engine.weight_version == version_name(steps_done, self._life):
            await self.push(steps_done)

    async def push(self, steps_done: int) -> None:
        """Pushes the weights, which sample turns from now on. Caches of other weights are dropped.

        Raises FairboxError if the engine can't take them.
        """
        version = version_name(steps_done, self._life)
        if self._folder is None:
            assert isinstance(self._policy, Policy)
            await self._engine.update_weights(
                StateWeights(self._policy.state()), version=version, timeout_s=self._timeout_s
            )
            self._pushed = version
            return
        path = (self._folder / version).absolute()
        of_before = self._kept
        try:
            if path != of_before:
                # Off the loop: the turns and tool calls of trajectories go on while gigabytes are written.
                await asyncio.to_thread(self._policy.write, path, for_engine=True)
            await self._engine.update_weights(DiskWeights(path), version=version, timeout_s=self._timeout_s)
            self._kept, self._pushed = path, version
        finally:
            await self._remove(of_before if self._kept == path else path)

    async def close(self) -> None:
        """Removes the folder of the current weights, which no server gets any more."""
        kept, self._kept = self._kept, None
        await self._remove(kept)

    async def _remove(self, path: Path | None) -> None:
        if path is not None and path != self._kept:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
