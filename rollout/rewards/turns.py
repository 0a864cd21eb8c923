"""Rewards of single turns: what tools gave for the calls that were made in them. Pure."""

from __future__ import annotations

from rollout.rewards.base import Reward, Sample
from rollout.rewards.registry import reward


@reward("tool_call_rewards")
def tool_call_rewards(sample: Sample, *, tools: tuple[str, ...] | None = None) -> Reward:
    """The sum of what tools gave for calls (`ToolCallRecord.reward`), each at its turn. Parts: `calls`, how many gave
    something. `tools` names those that count; None: all."""
    turns: dict[int, float] = {}
    calls = 0
    for call in sample.tool_calls:
        if call.reward is not None and (tools is None or call.name in tools):
            calls += 1
            turns[call.turn] = turns.get(call.turn, 0.0) + call.reward
    return Reward(sum(turns.values()), {"calls": float(calls)}, turns)
