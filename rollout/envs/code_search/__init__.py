"""Agentic code search: reports about repositories, searched by bash, answered with places in the code."""

from rollout.envs.code_search.dialects import AnswerDialect
from rollout.envs.code_search.environment import CodeSearchEnvironment, default_reward
from rollout.envs.code_search.finish import LocalizationFinish
from rollout.envs.code_search.places import Repositories
from rollout.envs.code_search.prompts import PromptContext, Prompts
from rollout.envs.code_search.rows import SearchRow, read_search_rows
from rollout.envs.code_search.settings import CodeSearchConfig

__all__ = [
    "AnswerDialect",
    "CodeSearchConfig",
    "CodeSearchEnvironment",
    "LocalizationFinish",
    "PromptContext",
    "Prompts",
    "Repositories",
    "SearchRow",
    "default_reward",
    "read_search_rows",
]
