"""A trajectory as rows of tokens, one for each of its parts, and its reward on them. Pure.

Whoever trains takes each part for a row of its own, because none is the beginning of the next. Every row has the whole
trajectory's reward, and only the last one counts where rewards are counted: in a group's mean, in a metric.

On the tokens of a row a turn's part of the reward stands at the last id that the model sampled in that turn; what
belongs to no turn stands at the last id that it sampled at all. Invariant: they add up to the reward, if anything was
sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rollout.loop.results import TrajectoryResult
from rollout.rewards.base import Reward


def rows_of(results: Sequence[TrajectoryResult]) -> tuple[list[TrajectoryResult], list[bool]]:
    """(rows, whether each is the last of its trajectory): each result, once for each of its parts, which is then its
    `trajectory`. `Reward.turns` keeps of each row the turns in it, counted from its own first one."""
    rows: list[TrajectoryResult] = []
    last: list[bool] = []
    for result in results:
        first = 0
        for part in result.parts:
            count = len(part.turns)
            reward = None if result.reward is None else _within(result.reward, first, count)
            rows.append(replace(result, trajectory=part, earlier=(), reward=reward) if result.earlier else result)
            first += count
        last += [False] * len(result.earlier) + [True]
    return rows, last


def _within(reward: Reward, first: int, count: int) -> Reward:
    """Keeps the row's own turns; the rest of the reward belongs to its end, as in a trajectory of one part."""
    turns = {turn - first: part for turn, part in reward.turns.items() if first < turn <= first + count}
    return replace(reward, turns=turns)


def token_rewards(result: TrajectoryResult) -> tuple[float, ...]:
    """One number for each response id; zeros where it has no reward, or nothing was sampled."""
    trajectory = result.trajectory
    ends = [turn.stop - 1 - len(trajectory.prompt_ids) for turn in trajectory.turns]
    rewards = [0.0] * len(trajectory.response_ids)
    if result.masked or result.reward is None or not ends:
        return tuple(rewards)
    rest = result.reward.value
    for turn, part in result.reward.turns.items():
        if turn < len(ends):  # what belongs to the last turn stands where the rest does
            rewards[ends[turn - 1]] += part
            rest -= part
    rewards[ends[-1]] += rest
    return tuple(rewards)
