"""How often a trajectory called tools. Pure.

A call is one that the trajectory made and that was answered, also with what is wrong with it; with `ran_only`, one that
really ran. What was called in a turn after the last one that was answered counts nowhere.
"""

from __future__ import annotations

from collections import Counter

from rollout.rewards.base import Sample

__all__ = ["calls_by_turn", "turns_but_last"]


def calls_by_turn(sample: Sample, *, ran_only: bool = False) -> Counter[int]:
    """Turn, from 1 -> calls; turns without calls are not in it."""
    return Counter(call.turn for call in sample.tool_calls if call.outcome.ran or not ran_only)


def turns_but_last(sample: Sample) -> int:
    """Turns without the last one, which answers; at least 1."""
    return max(1, sample.turns - 1)
