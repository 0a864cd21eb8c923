"""Figures of one trajectory: how many tokens, turns and calls, and how it searched. Pure.

The names of the first two groups are those of the code search projects. Two things differ: calls are counted (there,
`avg_tool_calls_per_step` is always 0), and nothing is counted of a trajectory that did nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from rollout.loop.results import TrajectoryResult
from rollout.metrics.search import search_metrics
from rollout.tokens.turn_spans import turn_spans

__all__ = ["PromptCount", "calls_of_turns", "efficiency_metrics", "trajectory_metrics"]

PromptCount = Literal["last", "sum"]
"""What the tokens of the prompt are: those that the last turn was given (codescout), which are all that there are, or
those of all turns together (main), in which the first prompt counts once for each turn. Of a trajectory in several
parts the context of each part's last turn counts."""


def trajectory_metrics(
    result: TrajectoryResult, row: Mapping[str, Any] | None = None, *, prompt_count: PromptCount = "last"
) -> dict[str, float]:
    """Every figure by its name. `row` is the task's; some figures of the search need its truth."""
    calls = sum(calls_of_turns(result))
    return {
        **efficiency_metrics(result, prompt_count=prompt_count),
        "num_turns": float(result.turns),
        "num_tool_calls": float(calls),
        "num_tool_calls_per_turn": _per(calls, result.turns),
        **search_metrics(result.tool_calls, row or {}),
    }


def efficiency_metrics(result: TrajectoryResult, *, prompt_count: PromptCount = "last") -> dict[str, float]:
    """Tokens and calls a step, which is a turn of the assistant; seconds on the wall, waits included."""
    parts = [turn_spans(part) for part in result.parts]
    response = sum(span.end - span.start for spans in parts for span in spans)
    prompts = [[span.start for span in spans] for spans in parts]
    prompt = sum(sum(starts) if prompt_count == "sum" else max(starts, default=0) for starts in prompts)
    return {
        "tokens": float(prompt + response),
        "steps": float(result.turns),
        "avg_tool_calls_per_step": _per(sum(calls_of_turns(result)), result.turns),
        "wall_clock_duration": result.times.total_s,
        "total_prompt_tokens": float(prompt),
        "total_response_tokens": float(response),
        "avg_prompt_tokens_per_step": _per(prompt, result.turns),
        "avg_response_tokens_per_step": _per(response, result.turns),
    }


def calls_of_turns(result: TrajectoryResult) -> list[int]:
    """Calls of each turn that has any, in order: those that were answered, also with what is wrong with them."""
    return [count for _, count in sorted(Counter(call.turn for call in result.tool_calls).items())]


def _per(count: int, turns: int) -> float:
    return count / turns if turns else 0.0
