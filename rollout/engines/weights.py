"""The interface of engines whose weights are replaced while they run, and the fate of turns in flight then.

Invariants: every sampled id has exactly one weight version, recorded in `GenerationResult.versions`; an update neither
loses nor repeats an id of a turn; after a failed update the engine says which weights it has, and takes turns again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rollout.engines.base import Engine

if TYPE_CHECKING:
    import torch


class Interrupt(StrEnum):
    """Effects of a weight update on the turns that run."""

    CONTINUE = "continue"
    """They stop where they are, keep what they have, and go on under the new weights: partial rollouts. The update does
    not wait for the longest turn, and such a turn has several version spans."""
    FINISH = "finish"
    """They run to their ends under the old weights; the update waits for them, and new turns wait for it."""


@dataclass(frozen=True, slots=True)
class DiskWeights:
    """A checkpoint folder in the layout of the Hugging Face hub, at the same path on every machine that serves."""

    path: Path


@dataclass(frozen=True, slots=True, eq=False)
class StateWeights:
    """A model's `state_dict` in this process, for an engine that lives in it. It is copied before the update returns,
    and must not change until then."""

    tensors: Mapping[str, torch.Tensor]


WeightSource = DiskWeights | StateWeights


class WeightedEngine(Engine, Protocol):
    """An engine whose weights can be replaced."""

    @property
    def weight_version(self) -> str:
        """The version that turns are sampled with now."""
        ...

    async def pause(self, mode: Interrupt | None = None, *, timeout_s: float = 600.0) -> None:
        """Stops sampling: returns when no turn runs. New turns wait. None takes the engine's own `interrupt` setting.

        Raises EngineUnavailable when that takes longer than `timeout_s`; the engine then goes on as before.
        """
        ...

    async def resume(self) -> None:
        """Goes on. Idempotent."""
        ...

    async def update_weights(self, source: WeightSource, *, version: str, timeout_s: float = 600.0) -> None:
        """Replaces the weights and calls them `version`; pauses and resumes by itself unless paused already.

        Raises FieldErrors for a source that can't be meant and EngineUnavailable when it could not be loaded.
        """
        ...


class Replica(WeightedEngine, Protocol):
    """An engine that can be one of several: its health can be asked for. A failed `__aenter__` may be tried again."""

    async def check_health(self, *, timeout_s: float = 5.0) -> str:
        """The weight version it samples with. Raises EngineUnavailable when it does not answer."""
        ...
