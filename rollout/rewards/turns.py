"""Rewards of a trajectory's length, and of what tools gave for the calls that its turns made. Pure."""

from __future__ import annotations

from executor_service import Cause
from rollout.rewards.base import NotScored, Reward, Sample
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


@reward("overlong")
def overlong(sample: Sample, *, most: int = 1024, buffer: int = 256) -> float:
    """A soft punishment for length (DAPO, arXiv:2503.14476, equation 13): 0 up to `most` - `buffer` ids after the
    prompt, sampled and tool ids together, from there on falling to -1 at `most`, and -1 beyond."""
    if sample.response_tokens is None:
        raise NotScored(Cause.TASK, "overlong needs the length in tokens, and only the text is known")
    beyond = sample.response_tokens - (most - buffer)
    return -min(max(beyond / max(buffer, 1), 0.0), 1.0)
