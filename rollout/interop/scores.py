"""Scores rows of another trainer's data: their reward function, and their ground truth."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from fairbox.errors import ConfigError
from rollout.interop.shared import shared_executor
from rollout.rewards import Composition, Reward, RewardServices, Sample, load_reward


@functools.lru_cache(maxsize=64)
def reward_function(name: str) -> Composition:
    """Loads what a setting names, once: a registered reward, a file, or `module:function`. Raises ConfigError."""
    return load_reward(name)


class RowScorer:
    """Scores rows with the reward of that name. Its functions' executor is at `executor`, which need not be there
    before one of them asks for it. Raises ConfigError."""

    def __init__(self, name: str, *, executor: str) -> None:
        self._composition = reward_function(name)
        self._executor = executor

    async def score(self, sample: Sample) -> Reward:
        """Scores a sample. Raises NotScored, and nothing else."""
        needed = any(entry.services for entry in self._composition.entries)
        services = RewardServices(executor=await shared_executor(self._executor)) if needed else RewardServices()
        return await self._composition.score(sample, services)


def ground_truth(extras: Mapping[str, Any]) -> str:
    """`reward_spec.ground_truth` of a row, or `reward_model.ground_truth` as verl's data has it; as JSON if it
    is no text. Raises ConfigError."""
    for key in ("reward_spec", "reward_model"):
        spec = extras.get(key)
        if isinstance(spec, Mapping) and "ground_truth" in spec:
            truth = spec["ground_truth"]
            return truth if isinstance(truth, str) else json.dumps(truth, default=str)
    raise ConfigError("the row has no reward_spec.ground_truth")
