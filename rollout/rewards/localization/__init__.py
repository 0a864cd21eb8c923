"""Rewards of code search: answers in six dialects against the files, modules, entities and lines that were edited.

Importing it registers the functions; docs/localization.md has their formulas.
"""

from rollout.rewards.localization.answer import Answer, LineSpan, Location
from rollout.rewards.localization.conduct import (
    empty_answer_penalty,
    format_reward,
    multiturn_reward,
    tool_use_reward,
    turn_efficiency,
)
from rollout.rewards.localization.dialects import (
    CodeBlockQuirks,
    Dialect,
    Generation,
    answer_of,
    parse_code_block,
    parse_file_list,
    parse_files_tag,
)
from rollout.rewards.localization.f1 import (
    file_localization_f1_reward,
    line_localization_reward,
    multilevel_localization_f1_reward,
)
from rollout.rewards.localization.finish import (
    FINISH_TOOL,
    finish_problem,
    finished_locations,
    parse_structured,
    read_locations,
)
from rollout.rewards.localization.lines import parse_final_answer, parse_line_answer
from rollout.rewards.localization.result_tool import (
    file_localization_reward,
    result_tool_check,
    result_tool_f1,
    result_tool_precision,
    result_tool_recall,
    tool_call_count_per_turn,
    turns_with_tool_calls,
)
from rollout.rewards.localization.said import final_message, last_turn
from rollout.rewards.localization.scores import Overlap, cosine, line_iou, line_overlap, overlap
from rollout.rewards.localization.shaped import cosine_reward, main_cosine_reward, scaled_f1_reward
from rollout.rewards.localization.truth import Truth, changed_truth, target_files, target_lines

__all__ = [
    "FINISH_TOOL",
    "Answer",
    "CodeBlockQuirks",
    "Dialect",
    "Generation",
    "LineSpan",
    "Location",
    "Overlap",
    "Truth",
    "answer_of",
    "changed_truth",
    "cosine",
    "cosine_reward",
    "empty_answer_penalty",
    "file_localization_f1_reward",
    "file_localization_reward",
    "final_message",
    "finish_problem",
    "finished_locations",
    "format_reward",
    "last_turn",
    "line_iou",
    "line_localization_reward",
    "line_overlap",
    "main_cosine_reward",
    "multilevel_localization_f1_reward",
    "multiturn_reward",
    "overlap",
    "parse_code_block",
    "parse_file_list",
    "parse_files_tag",
    "parse_final_answer",
    "parse_line_answer",
    "parse_structured",
    "read_locations",
    "result_tool_check",
    "result_tool_f1",
    "result_tool_precision",
    "result_tool_recall",
    "scaled_f1_reward",
    "target_files",
    "target_lines",
    "tool_call_count_per_turn",
    "tool_use_reward",
    "turn_efficiency",
    "turns_with_tool_calls",
]
