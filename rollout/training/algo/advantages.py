"""Advantages: how much better a token was than expected. One function for each estimator, one table of them.

Shapes: B rows, R response positions. Invariants: a row without a score is in no statistic and has no advantage; its
tokens are not in `Advantages.mask`, which is the only mask that a loss needs. So what is masked is left out once, here.

Groups (GRPO, RLOO) take the trajectory's reward for each of its tokens. A group with fewer than two scored rows has no
baseline, and its one row is left out. Token estimators (GAE, REINFORCE++) go over the sampled tokens of a
row as if they stood side by side: what tools wrote between them is no action, costs no discount and cuts no return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fairbox.config import setting
from rollout.batch import RolloutBatch
from rollout.loop.limits import StopReason
from rollout.training.algo.masked import kept, whitened


def discounted_returns(rewards: torch.Tensor, mask: torch.Tensor, *, gamma: float) -> torch.Tensor:
    """[B, R]: G_t = r_t + gamma * G_{t+1} over the True of `mask`, 0 elsewhere. `rewards` are [B, R]."""
    returns = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for t in range(rewards.shape[1] - 1, -1, -1):
        running = torch.where(mask[:, t], rewards[:, t] + gamma * running, running)
        returns[:, t] = torch.where(mask[:, t], running, returns[:, t])
    return returns


def generalized_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, *, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(advantages, returns), both [B, R], 0 outside `mask`:

    delta_t = r_t + gamma * V_{t+1} - V_t,  A_t = delta_t + gamma * lam * A_{t+1},  G_t = A_t + V_t

    where t+1 is the next True of `mask`, and V and A behind the last one are 0: a trajectory that has ended, by an
    answer or by a limit, is worth nothing more.
    """
    advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    running = torch.zeros_like(following)
    for t in range(rewards.shape[1] - 1, -1, -1):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * following - values[:, t]
        running = torch.where(here, delta + gamma * lam * running, running)
        following = torch.where(here, values[:, t], following)
        advantages[:, t] = torch.where(here, running, advantages[:, t])
        returns[:, t] = torch.where(here, running + values[:, t], returns[:, t])
    return advantages, returns


_LENGTHS = (StopReason.TURN_LENGTH, StopReason.RESPONSE_LENGTH, StopReason.MODEL_LENGTH)
_EPS = 1e-6
"""Added to a group's deviation, as in verl and SkyRL."""


@dataclass(frozen=True)
class AdvantageSettings:
    """Settings of the advantage estimator."""

    estimator: str = setting(
        "grpo",
        choices=("grpo", "rloo", "reinforce++", "gae"),
        help="grpo, rloo, reinforce++ or gae, which trains a value head.",
    )
    norm_by_std: bool = setting(True, help="grpo: divide by the group's standard deviation; Dr. GRPO does not.")
    equal_groups: str = setting(
        "keep",
        choices=("keep", "drop", "replace"),
        help="grpo, rloo: groups whose rewards are all the same: keep, drop (leave out) or replace (by others: DAPO).",
    )
    drop_truncated: bool = setting(
        False,
        help="Leave trajectories out of the loss that a length limit cut off; their rewards count in their groups.",
    )
    gamma: float = setting(1.0, least=0, most=1, help="gae, reinforce++: discount of a sampled token, 0 to 1.")
    lam: float = setting(0.95, least=0, most=1, help="gae: how far rewards are believed rather than values, 0 to 1.")
    whiten: bool = setting(True, help="gae, reinforce++: mean 0 and variance 1 over the tokens of a step.")


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Inputs of an advantage estimator, taken from a batch."""

    rewards: torch.Tensor
    """float [B]: the trajectory's reward; anything where `scored` is False."""
    scored: torch.Tensor
    """bool [B]."""
    groups: torch.Tensor
    """int64 [B]: number of the row's group, from 0."""
    mask: torch.Tensor
    """bool [B, R]: sampled tokens."""
    values: torch.Tensor | None = None
    """float [B, R]: what the value head expects before each token; GAE needs it."""
    counted: torch.Tensor | None = None
    """bool [B]: rows that stand for their trajectory in a group's statistics, if they have a score; None: all. Each
    row of a condensed trajectory has its reward, and one of them counts."""
    spread_rewards: torch.Tensor | None = None
    """float [B, R]: the reward spread over tokens, as `RolloutBatch.token_rewards`; None: it is at the last token."""
    truncated: torch.Tensor | None = None
    """bool [B]: rows of trajectories that a length limit cut off; None: none."""

    @classmethod
    def of(cls, batch: RolloutBatch, *, values: torch.Tensor | None = None) -> Outcomes:
        """Takes the inputs from a batch."""
        mask = batch.response_mask.bool() & batch.scored.unsqueeze(1)
        return cls(
            batch.rewards,
            batch.scored,
            batch.groups,
            mask,
            values,
            counted=batch.is_last_step,
            spread_rewards=batch.token_rewards,
            truncated=torch.tensor([reason in _LENGTHS for reason in batch.stop_reasons]),
        )

    def token_rewards(self) -> torch.Tensor:
        """float64 [B, R]: the reward, each part at its token."""
        if self.spread_rewards is not None:
            return kept(self.spread_rewards.double(), self.mask)
        behind = self.mask.long().flip(1).cumsum(1).flip(1)
        whole = self.rewards.double().unsqueeze(1).expand(self.mask.shape)
        return kept(whole, self.mask & (behind == 1))


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of a batch's tokens, and returns for its value head."""

    advantages: torch.Tensor
    """float32 [B, R]; 0 outside `mask`."""
    mask: torch.Tensor
    """bool [B, R]: the tokens that the loss sees."""
    returns: torch.Tensor | None = None
    """float32 [B, R]: what the value head should have expected; 0 outside `mask`. None without values."""


def estimate_advantages(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Estimates advantages with the estimator that `settings` names."""
    found = ESTIMATORS[settings.estimator](outcomes, settings)
    if not settings.drop_truncated or outcomes.truncated is None:
        return found
    mask = found.mask & ~outcomes.truncated.to(found.mask.device).unsqueeze(1)
    returns = None if found.returns is None else kept(found.returns, mask)
    return Advantages(kept(found.advantages, mask), mask, returns)


def grpo(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """(r - mean) / (std + eps) of the row's group (DeepSeekMath, arXiv:2402.03300, 4.1.2); without the division with
    `norm_by_std` off (Dr. GRPO, arXiv:2503.20783)."""
    group = _Groups.of(outcomes)
    centred = group.rewards - group.mean
    if settings.norm_by_std:
        centred = centred / (group.deviation() + _EPS)
    return _spread(centred, group, outcomes, settings)


def rloo(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """r minus the mean of the others of its group (Ahmadian et al., arXiv:2402.14740), which is
    (r - mean) * n / (n - 1)."""
    group = _Groups.of(outcomes)
    centred = (group.rewards - group.mean) * group.count / (group.count - 1).clamp(min=1)
    return _spread(centred, group, outcomes, settings)


def reinforce_plus_plus(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Discounted returns, whitened over all tokens of the step (Hu, arXiv:2501.03262)."""
    returns = discounted_returns(outcomes.token_rewards(), outcomes.mask, gamma=settings.gamma)
    return _finish(returns, None, outcomes.mask, settings)


def gae(outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Generalized advantages (Schulman et al., arXiv:1506.02438, equation 16), and the returns for the value head."""
    assert outcomes.values is not None, "gae needs values"
    advantages, returns = generalized_advantages(
        outcomes.token_rewards(), outcomes.values.double(), outcomes.mask, gamma=settings.gamma, lam=settings.lam
    )
    return _finish(advantages, returns, outcomes.mask, settings)


ESTIMATORS: dict[str, Callable[[Outcomes, AdvantageSettings], Advantages]] = {
    "grpo": grpo,
    "rloo": rloo,
    "reinforce++": reinforce_plus_plus,
    "gae": gae,
}


@dataclass(frozen=True, slots=True)
class _Groups:
    """Statistics of each row's group over its scored trajectories. All float64 [B]."""

    rewards: torch.Tensor
    count: torch.Tensor
    mean: torch.Tensor
    squares: torch.Tensor
    """Sum of the squared distances to the mean."""
    equal: torch.Tensor
    """bool: all rewards of the group are the same."""

    @classmethod
    def of(cls, outcomes: Outcomes) -> _Groups:
        rewards = kept(outcomes.rewards.double(), outcomes.scored)
        scored = outcomes.scored if outcomes.counted is None else outcomes.scored & outcomes.counted
        size = int(outcomes.groups.max()) + 1

        def total(values: torch.Tensor) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.float64, device=values.device).index_add(0, outcomes.groups, values)

        count = total(scored.double())
        mean = total(kept(rewards, scored)) / count.clamp(min=1)
        squares = total(kept((rewards - mean[outcomes.groups]).square(), scored))
        low = torch.full_like(mean, torch.inf).scatter_reduce(
            0, outcomes.groups, rewards.masked_fill(~scored, torch.inf), "amin"
        )
        high = torch.full_like(mean, -torch.inf).scatter_reduce(
            0, outcomes.groups, rewards.masked_fill(~scored, -torch.inf), "amax"
        )
        at = outcomes.groups
        return cls(rewards, count[at], mean[at], squares[at], (low >= high)[at])

    def deviation(self) -> torch.Tensor:
        return (self.squares / (self.count - 1).clamp(min=1)).sqrt()


def _spread(centred: torch.Tensor, group: _Groups, outcomes: Outcomes, settings: AdvantageSettings) -> Advantages:
    """Gives each token its row's advantage, and leaves rows out that have none."""
    rows = outcomes.scored & (group.count > 1)
    if settings.equal_groups != "keep":
        rows = rows & ~group.equal
    mask = outcomes.mask & rows.unsqueeze(1)
    return Advantages(kept(centred.float().unsqueeze(1).expand(mask.shape), mask), mask)


def _finish(
    advantages: torch.Tensor, returns: torch.Tensor | None, mask: torch.Tensor, settings: AdvantageSettings
) -> Advantages:
    advantages = whitened(advantages, mask) if settings.whiten else advantages
    return Advantages(advantages.float(), mask, None if returns is None else returns.float())
