"""Agentic code search: reports about repositories, searched by bash, answered with places in the code."""

from rollout.envs.code_search.environment import CodeSearchConfig, CodeSearchEnvironment, default_reward
from rollout.envs.code_search.finish import LocalizationFinish
from rollout.envs.code_search.prompts import PromptContext, Prompts
from rollout.envs.code_search.rows import SearchRow, read_search_rows

__all__ = [
    "CodeSearchConfig",
    "CodeSearchEnvironment",
    "LocalizationFinish",
    "PromptContext",
    "Prompts",
    "SearchRow",
    "default_reward",
    "read_search_rows",
]
