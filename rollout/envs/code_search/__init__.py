"""Agentic code search: reports about repositories, searched by bash, answered with places in the code."""

from rollout.envs.code_search.environment import (
    CodeSearchConfig,
    CodeSearchEnvironment,
    default_reward,
    read_search_rows,
)
from rollout.envs.code_search.finish import LocalizationFinish

__all__ = [
    "CodeSearchConfig",
    "CodeSearchEnvironment",
    "LocalizationFinish",
    "default_reward",
    "read_search_rows",
]
