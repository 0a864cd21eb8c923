"""Brings the trained weights to the engine that samples, under a name of their own."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from fairbox.errors import FairboxError
from rollout.engines.weights import DiskWeights, StateWeights, WeightedEngine
from rollout.training.policy import Policy

__all__ = ["WeightSync", "export_model", "steps_of", "version_name"]

_TOKENIZER = ("tokenizer*", "*.jinja", "vocab*", "merges.txt", "special_tokens_map.json", "generation_config.json")
"""What a model folder holds beside its configuration and weights."""


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
    """`folder` None is for an engine in this process, which copies the weights; servers read them from a folder below
    `folder`, which must be at the same path on their machines."""

    def __init__(self, engine: WeightedEngine, policy: Policy, *, folder: Path | None) -> None:
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
            await self._engine.update_weights(StateWeights(self._policy.state()), version=version)
            return version
        path = (self._folder / version).absolute()
        try:
            await asyncio.to_thread(write_model, self._policy, path)  # trajectories may be played meanwhile
            await self._engine.update_weights(DiskWeights(path), version=version)
        except (OSError, SafetensorError) as error:
            raise FairboxError(f"{path}: the weights can't be written: {error}") from None
        finally:
            shutil.rmtree(path, ignore_errors=True)
        return version


def export_model(policy: Policy, source: Path, target: Path) -> None:
    """Writes the trained model as a folder that `model` of a run and other programs take: what was learned put into the
    weights, with the tokenizer of `source`. It is whole or not there. Raises FairboxError."""
    beside = target.with_name(f".{target.name}.part")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        write_model(policy, beside)
        for path in {path for pattern in _TOKENIZER for path in source.glob(pattern) if path.is_file()}:
            shutil.copy(path, beside / path.name)
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise FairboxError(f"{target}: the model can't be written: {error}") from None


def write_model(policy: Policy, folder: Path) -> None:
    """Configuration and weights as on the Hugging Face hub, without a tokenizer. Raises OSError and SafetensorError."""
    folder.mkdir(parents=True, exist_ok=True)
    seen: dict[int, str] = {}
    state = {}
    for name, value in policy.state().items():  # tied weights are one tensor under two names, and are kept once
        if seen.setdefault(value.data_ptr(), name) == name:
            state[name] = value.contiguous().cpu()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    policy.model.config.save_pretrained(folder)
