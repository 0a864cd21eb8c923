"""Rewards for how a trajectory went about it: tool calls, turns, the form of the answer.

`turns` are those of the assistant. A call is one that the trajectory made and that was answered, also with what is
wrong with it; with `ran_only`, one that really ran. What was called in a turn after the last one that was answered
counts nowhere.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from rollout.rewards.base import Reward, Sample
from rollout.rewards.localization.answer import final_message
from rollout.rewards.localization.dialects import Generation
from rollout.rewards.registry import reward

_PENALTY = -5.0
"""Reward for no tool call, and for an answer of another form."""


def calls_by_turn(sample: Sample, *, ran_only: bool = False) -> Counter[int]:
    """Turn, from 1 -> calls; turns without calls are not in it."""
    return Counter(call.turn for call in sample.tool_calls if call.outcome.ran or not ran_only)


def turns_but_last(sample: Sample) -> int:
    """Turns without the last one, which answers; at least 1."""
    return max(1, sample.turns - 1)


@reward("tool_use_reward")
def tool_use_reward(
    sample: Sample,
    *,
    generation: Generation = "codescout",
    max_tool_use: float = 5.0,
    penalize: bool = False,
    clamp: bool = False,
    reduction: Literal["mean", "sum"] = "mean",
    ran_only: bool = False,
) -> float:
    """Calls for each turn.

    main: calls / turns, without a bound; the other arguments have no effect. codescout: min(calls / max(1, turns - 1),
    max_tool_use) / max_tool_use, with `reduction=sum` min(calls, max_tool_use) / max_tool_use; without any call 0, or
    -5 with `penalize`; `clamp` makes everything above 0 a 1.
    """
    calls = calls_by_turn(sample, ran_only=ran_only).total()
    if generation == "main":
        return calls / sample.turns if sample.turns else 0.0
    if not calls:
        return _PENALTY if penalize else 0.0
    used = calls / turns_but_last(sample) if reduction == "mean" else float(calls)
    value = min(used, max_tool_use) / max_tool_use
    return float(value > 0) if clamp else value


@reward("turn_efficiency")
def turn_efficiency(sample: Sample, *, max_turns: int = 5, ran_only: bool = False) -> float:
    """1 up to `max_turns` turns, 0.1 less for each further one, at least 0; 0 with fewer than two turns or calls."""
    if sample.turns <= 1 or calls_by_turn(sample, ran_only=ran_only).total() <= 1:
        return 0.0
    return max(0.0, 1.0 - max(0, sample.turns - max_turns) * 0.1)


@reward("multiturn_reward")
def multiturn_reward(
    sample: Sample, *, generation: Generation = "codescout", minimal_turns: int = 1, maximal_turns: int = 5
) -> float:
    """1, or else 0, for `minimal_turns` <= turns <= `maximal_turns`; main: for turns > `minimal_turns`."""
    if generation == "main":
        return float(sample.turns > minimal_turns)
    return float(minimal_turns <= sample.turns <= maximal_turns)


@reward("format_reward")
def format_reward(
    sample: Sample, *, start_string: str = "```", end_string: str = "```", penalize: bool = True
) -> float:
    """1 for a final message that begins with `start_string` and has `end_string` in it; else -5, or 0 without
    `penalize`. With equal strings the beginning alone is enough, as in the function that this comes from."""
    message = final_message(sample).strip()
    if message.startswith(start_string) and end_string in message:
        return 1.0
    return _PENALTY if penalize else 0.0


@reward("empty_answer_penalty")
def empty_answer_penalty(sample: Sample, *, penalty: float = -10.0) -> Reward:
    """`penalty` for a final message that is empty, else 0. Part: `empty`.

    The first generation lets it replace the whole reward; as one function of a sum it is added to the others.
    """
    empty = final_message(sample) == ""
    return Reward(penalty if empty else 0.0, {"empty": float(empty)})
