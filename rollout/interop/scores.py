"""What a row of another trainer's data is scored with, and against what."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from fairbox.errors import ConfigError
from rollout.rewards.gsm8k import gsm8k_reward

__all__ = ["Score", "ground_truth", "reward_function"]

Score = Callable[[str, str], float]
"""(text of the last turn, ground truth) -> reward."""


def reward_function(name: str) -> Score:
    """The reward of that name, or what `module:function` names. Raises ConfigError."""
    if name == "gsm8k":
        return lambda text, truth: gsm8k_reward(text, truth).value
    module, colon, function = name.partition(":")
    try:
        score = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"reward is {name!r}: {error}") from None
    if not callable(score):
        raise ConfigError(f"reward is {name!r}, must be gsm8k or module:function")
    return lambda text, truth: float(score(text, truth))


def ground_truth(extras: Mapping[str, Any]) -> str:
    """`reward_spec.ground_truth` of a row, or `reward_model.ground_truth` as verl's data has it. Raises ConfigError."""
    for key in ("reward_spec", "reward_model"):
        spec = extras.get(key)
        if isinstance(spec, Mapping) and "ground_truth" in spec:
            return str(spec["ground_truth"])
    raise ConfigError("the row has no reward_spec.ground_truth")
