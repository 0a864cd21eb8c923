"""A trajectory as rows of tokens: one for each of its parts. Pure.

Whoever trains takes each part for a row of its own, because none is the beginning of the next. Every row has the whole
trajectory's reward, and only the last one counts where rewards are counted: in a group's mean, in a metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from rollout.loop.results import TrajectoryResult
from rollout.rewards.base import Reward
from rollout.tokens.segment import SegmentKind
from rollout.tokens.trajectory import Trajectory


def rows_of(results: Sequence[TrajectoryResult]) -> tuple[list[TrajectoryResult], list[bool]]:
    """(rows, whether each is the last of its trajectory): each result, once for each of its parts, which is then its
    `trajectory`. `Reward.turns` keeps of each row the turns in it, counted from its own first one."""
    rows: list[TrajectoryResult] = []
    last: list[bool] = []
    for result in results:
        first = 0
        for part in result.parts:
            count = _turns(part)
            reward = None if result.reward is None else _within(result.reward, first, count)
            rows.append(replace(result, trajectory=part, earlier=(), reward=reward) if result.earlier else result)
            first += count
        last += [False] * len(result.earlier) + [True]
    return rows, last


def _within(reward: Reward, first: int, count: int) -> Reward:
    """Keeps the row's own turns; the rest of the reward belongs to its end, as in a trajectory of one part."""
    turns = {turn - first: part for turn, part in reward.turns.items() if first < turn <= first + count}
    return replace(reward, turns=turns)


def _turns(part: Trajectory) -> int:
    """Sampled stretches; one of several weight versions has several segments."""
    kinds = [segment.kind for segment in part.segments]
    return sum(kind is SegmentKind.SAMPLED and before is not SegmentKind.SAMPLED for before, kind in pairwise(kinds))
