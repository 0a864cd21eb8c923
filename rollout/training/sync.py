"""Brings the trained weights to the engine that samples, under a name of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

from fairbox.errors import FairboxError
from rollout.engines.weights import DiskWeights, StateWeights, WeightedEngine
from rollout.training.policy import Policy

__all__ = ["WeightSync", "version_name"]


def version_name(steps_done: int) -> str:
    """Of the weights after so many steps."""
    return f"step-{steps_done}"


class WeightSync:
    """`folder` None is for an engine in this process, which copies the weights; servers read them from a folder below
    `folder`, which must be at the same path on their machines."""

    def __init__(self, engine: WeightedEngine, policy: Policy, *, folder: Path | None) -> None:
        self._engine = engine
        self._policy = policy
        self._folder = folder

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
            write_model(self._policy, path)
            await self._engine.update_weights(DiskWeights(path), version=version)
        except OSError as error:
            raise FairboxError(f"{path}: the weights can't be written: {error.strerror or error}") from None
        finally:
            shutil.rmtree(path, ignore_errors=True)
        return version


def write_model(policy: Policy, folder: Path) -> None:
    """Configuration and weights in the layout of the Hugging Face hub, without a tokenizer. Raises OSError."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    seen: dict[int, str] = {}
    state = {}
    for name, value in policy.state().items():  # tied weights are one tensor under two names, and are kept once
        if seen.setdefault(value.data_ptr(), name) == name:
            state[name] = value.contiguous().cpu()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    policy.model.config.save_pretrained(folder)
