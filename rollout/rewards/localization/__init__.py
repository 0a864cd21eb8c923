"""Rewards of code search: answers in four dialects against the files, modules, entities and lines that were edited.

Importing it registers the functions; docs/reference/localization.md has their formulas.
"""

from rollout.rewards.localization.conduct import (
    empty_answer_penalty,
    format_reward,
    multiturn_reward,
    tool_use_reward,
    turn_efficiency,
)
from rollout.rewards.localization.f1 import (
    file_localization_f1_reward,
    line_localization_reward,
    multilevel_localization_f1_reward,
)
from rollout.rewards.localization.result_tool import (
    file_localization_reward,
    result_tool_check,
    result_tool_f1,
    result_tool_precision,
    result_tool_recall,
    tool_call_count_per_turn,
    turns_with_tool_calls,
)
from rollout.rewards.localization.shaped import cosine_reward, main_cosine_reward, scaled_f1_reward

__all__ = [
    "cosine_reward",
    "empty_answer_penalty",
    "file_localization_f1_reward",
    "file_localization_reward",
    "format_reward",
    "line_localization_reward",
    "main_cosine_reward",
    "multilevel_localization_f1_reward",
    "multiturn_reward",
    "result_tool_check",
    "result_tool_f1",
    "result_tool_precision",
    "result_tool_recall",
    "scaled_f1_reward",
    "tool_call_count_per_turn",
    "tool_use_reward",
    "turn_efficiency",
    "turns_with_tool_calls",
]
