"""Assigns the parts of a reward to tokens of its trajectory. Pure.

A turn's part stands at the last id that the model sampled in that turn; what belongs to no turn stands at the last id
that it sampled at all. Invariant: they add up to the reward, if anything was sampled.
"""

from __future__ import annotations

from rollout.loop.results import TrajectoryResult
from rollout.tokens.segment import SegmentKind


def token_rewards(result: TrajectoryResult) -> tuple[float, ...]:
    """One number for each response id; zeros where it has no reward, or nothing was sampled."""
    ends = _turn_ends(result)
    rewards = [0.0] * len(result.trajectory.response_ids)
    if result.masked or result.reward is None or not ends:
        return tuple(rewards)
    rest = result.reward.value
    for turn, part in result.reward.turns.items():
        if turn < len(ends):  # what belongs to the last turn stands where the rest does
            rewards[ends[turn - 1]] += part
            rest -= part
    rewards[ends[-1]] += rest
    return tuple(rewards)


def _turn_ends(result: TrajectoryResult) -> list[int]:
    """Index of each turn's last sampled id among the response ids. A turn may have several segments, one for each
    version of the weights; the segment between two turns is never empty."""
    ends: list[int] = []
    length, before = 0, SegmentKind.PROMPT
    for segment in result.trajectory.segments[1:]:
        length += len(segment.ids)
        if segment.kind is SegmentKind.SAMPLED:
            if before is SegmentKind.SAMPLED:
                ends.pop()
            ends.append(length - 1)
        before = segment.kind
    return ends
