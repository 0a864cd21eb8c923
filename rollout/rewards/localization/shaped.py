"""Rewards that shape the F1 by the search: along cosines of turns and calls, and scaled by calls."""

from __future__ import annotations

from typing import Any, Unpack

from executor_service import Cause
from rollout.rewards.base import NotScored, Reward, Sample
from rollout.rewards.localization.conduct import calls_by_turn, turns_but_last
from rollout.rewards.localization.dialects import Generation, ReadArguments
from rollout.rewards.localization.f1 import file_localization_f1_reward, multilevel_localization_f1_reward
from rollout.rewards.localization.scores import cosine
from rollout.rewards.registry import reward

_OVER = -10.0
"""main: for more turns, or calls a turn, than the cosine's period."""


class FoundArguments(ReadArguments, total=False):
    """Arguments for reading an answer, and the weights of the levels, 1.0 each by default."""

    file_level_weight: float
    module_level_weight: float
    entity_level_weight: float


def _found(sample: Sample, generation: Generation, multilevel: bool, how: FoundArguments) -> Reward:
    if multilevel:
        return multilevel_localization_f1_reward(sample, generation=generation, **how)
    of_files: Any = {name: value for name, value in how.items() if not name.startswith(("module_", "entity_"))}
    return file_localization_f1_reward(sample, generation=generation, **of_files)


@reward("main_cosine_reward")
def main_cosine_reward(
    sample: Sample,
    *,
    loc_threshold: float = 0.5,
    ran_only: bool = False,
    **how: Unpack[FoundArguments],
) -> Reward:
    """`cosine_reward` of the first generation: a cosine of the turns plus one of the calls a turn.

    Each falls from +5 to 0 where the multilevel reward is at least `loc_threshold`, and rises from -5 to 0 otherwise,
    over 10 turns and 5 calls a turn; beyond that it is -10. What was found is not added itself. Right answers with
    fewer calls are worth more. Parts: those of the multilevel reward, `turn_cosine_reward`, `tool_cosine_reward`.
    """
    found = _found(sample, "main", True, how)
    sign = 5.0 if found.value >= loc_threshold else -5.0
    turns, calls = sample.turns, calls_by_turn(sample, ran_only=ran_only).total()
    each = calls / max(1, turns)
    turn = _OVER if turns > 10 else cosine(turns, 10, 0.0, sign)
    tool = _OVER if each > 5 else cosine(each, 5, 0.0, sign)
    return Reward(turn + tool, {**found.parts, "turn_cosine_reward": turn, "tool_cosine_reward": tool})


@reward("cosine_reward")
def cosine_reward(
    sample: Sample,
    *,
    multilevel: bool = True,
    loc_threshold: float = 1.5,
    use_tool_reward: bool = True,
    use_turn_reward: bool = True,
    use_length_reward: bool = False,
    max_turns: int = 8,
    max_avg_tool_calls: float = 10.0,
    ideal_avg_tool_calls: float = 5.0,
    max_length: int = 16384,
    max_reward: float = 5.0,
    min_reward: float = -5.0,
    ran_only: bool = False,
    **how: Unpack[FoundArguments],
) -> Reward:
    """The sum of a cosine of the turns, one of the calls a turn and one of the tokens, those that are used.

    Turns without the last one and tokens: from `max_reward` (found: at least `loc_threshold`) or `min_reward` to 0 at
    `max_turns` or `max_length`, 0 beyond. Calls a turn, where found: 1 at none, `max_reward` below the ideal number,
    and from there to 1 at twice the ideal, where the value at the ideal itself is the maximum; where not: from
    `min_reward` to 0; 0 beyond `max_avg_tool_calls`. Parts: those of what was found, and `turn_cosine_reward`,
    `tool_cosine_reward`, `length_cosine_reward`.
    """
    found = _found(sample, "codescout", multilevel, how)
    right = found.value >= loc_threshold
    goal = max_reward if right else min_reward
    parts: dict[str, float] = {}
    if use_turn_reward:
        turns = turns_but_last(sample)
        parts["turn_cosine_reward"] = 0.0 if turns > max_turns else cosine(turns, max_turns, 0.0, goal)
    if use_length_reward:
        if sample.tokens is None:
            raise NotScored(Cause.TASK, "cosine_reward: use_length_reward is set, but the sample has no tokens")
        long = sample.tokens > max_length
        parts["length_cosine_reward"] = 0.0 if long else cosine(sample.tokens, max_length, 0.0, goal)
    if use_tool_reward:
        each = calls_by_turn(sample, ran_only=ran_only).total() / turns_but_last(sample)
        if each > max_avg_tool_calls:
            tool = 0.0
        elif not right:
            tool = cosine(each, max_avg_tool_calls, 0.0, min_reward)
        elif each >= ideal_avg_tool_calls:
            tool = cosine(each - ideal_avg_tool_calls, ideal_avg_tool_calls, 1.0, max_reward)
        else:
            tool = cosine(each, ideal_avg_tool_calls, max_reward, 1.0)
        parts["tool_cosine_reward"] = tool
    return Reward(sum(parts.values()), {**found.parts, **parts})


@reward("scaled_f1_reward")
def scaled_f1_reward(
    sample: Sample,
    *,
    generation: Generation = "codescout",
    multilevel: bool = False,
    ran_only: bool = False,
    **how: Unpack[FoundArguments],
) -> Reward:
    """The F1 reward times min(calls / max(1, turns - 1), 5) / 5; -5 without any call.

    Parts: those of the F1 reward, and the factor as `tool_use_reward`.
    """
    found = _found(sample, generation, multilevel, how)
    factor = min(calls_by_turn(sample, ran_only=ran_only).total() / turns_but_last(sample), 5.0) / 5.0
    value = found.value * factor if factor > 0 else -5.0
    return Reward(value, {**found.parts, "tool_use_reward": factor})
