"""The whole objective: policy loss with importance weights, KL penalty, entropy bonus and value loss, in one sum.

Every term is linear in the tokens' weights (`token_weights`), so an objective may be computed for any part of the rows
of an optimizer step, and the parts' gradients add up to that of the whole.

Truncated importance sampling (Yao et al., "Your efficient RL framework secretly brings you off-policy RL training",
2025): the loss of a token is multiplied by min(p_old / p_rollout, cap), without gradient, where p_old are the trainer's
probabilities at the start of the step and p_rollout the engine's. With the ratio of the policy loss taken to p_old this
is decoupled PPO (Hilton et al., arXiv:2110.00641).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fairbox.config import setting
from fairbox.errors import ConfigError
from rollout.training.algo.aggregation import AGGREGATIONS
from rollout.training.algo.masked import kept, masked_mean, masked_sum
from rollout.training.algo.policy_losses import MAX_LOG_RATIO, PolicyInputs, PolicyLossSettings, policy_loss

MAX_LOG_WEIGHT = 20.0
"""Bound of a log weight, as of a sequence's sum of log ratios; far beyond any cap."""


@dataclass(frozen=True)
class CorrectionSettings:
    """Settings of the importance weights of tokens that the trained weights did not sample."""

    level: str = setting(
        "none",
        choices=("none", "token", "sequence", "geometric"),
        help="none, token, sequence (product of its tokens' ratios) or geometric (their geometric mean).",
    )
    cap: float = setting(
        2.0, least=1, help="Largest weight, which those beyond it become; usual are 2 for token, 5 for sequence."
    )


def importance_weights(
    old_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, mask: torch.Tensor, settings: CorrectionSettings
) -> torch.Tensor:
    """[B, R], without gradient; 1 everywhere with level none, 0 outside the bool `mask` otherwise."""
    if settings.level == "none":
        return torch.ones_like(old_logprobs)
    log_ratio = kept(old_logprobs.detach() - rollout_logprobs, mask)
    if settings.level == "sequence":
        log_ratio = masked_sum(log_ratio, mask, 1).unsqueeze(1).expand(mask.shape)
    elif settings.level == "geometric":
        log_ratio = masked_mean(log_ratio, mask, 1).unsqueeze(1).expand(mask.shape)
    return kept(log_ratio.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).exp().clamp(max=settings.cap), mask)


def kl_penalty(logprobs: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[B, R]: exp(d) - 1 - d, d = log q - log p, at each token of the bool `mask`, 0 elsewhere: "k3", which has the
    right mean and is never negative. The gradient flows into `logprobs` alone."""
    difference = kept(reference.detach() - logprobs, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    # expm1 keeps the digits that exp(d) - 1 loses near 0, where policies usually are.
    return torch.expm1(difference) - difference


VALUE_CLIP = 0.2
"""Distance beyond which the move of a value in a step is clipped."""


@dataclass(frozen=True)
class ObjectiveSettings:
    """Settings of the objective, which training minimizes."""

    policy: PolicyLossSettings = setting(factory=PolicyLossSettings, help="The policy loss.")
    aggregation: str = setting(
        "token_mean", choices=AGGREGATIONS, help=f"How tokens become one number: {', '.join(AGGREGATIONS)}."
    )
    anchor: str = setting(
        "trainer",
        choices=("trainer", "rollout"),
        help="Logprobs that the ratio is taken to: the trainer's at the start of the step, or the rollout's.",
    )
    correction: CorrectionSettings = setting(factory=CorrectionSettings, help="For tokens of other weights.")
    kl_coef: float = setting(
        0.0, least=0, help="Weight of the KL to the first model, as a loss; 0: no reference is kept."
    )
    entropy_coef: float = setting(0.0, least=0, help="Weight of the entropy, which is made large.")
    value_coef: float = setting(0.5, least=0, help="gae: weight of the value loss.")

    def validate(self) -> None:
        """Raises ConfigError for settings that contradict each other."""
        if self.anchor == "rollout" and self.correction.level != "none":
            raise ConfigError("loss.correction.level is set, but with loss.anchor=rollout the ratio corrects already")

    @property
    def needs_reference(self) -> bool:
        """True if logprobs of the first model are needed."""
        return self.kl_coef > 0


@dataclass(frozen=True, slots=True)
class ObjectiveInputs:
    """Some rows of an optimizer step. All [B, R]; `weights` are `token_weights` of the whole step's rows, cut to these.
    The gradient flows into `logprobs`, `entropy` and `values`."""

    logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    """The trainer's at the start of the step."""
    rollout_logprobs: torch.Tensor
    """The engine's."""
    advantages: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor
    entropy: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    old_values: torch.Tensor | None = None
    returns: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """A loss, and sums over tokens that explain it."""

    loss: torch.Tensor
    """Scalar."""
    sums: dict[str, float]
    """Sums of the terms (weighted: they add up over parts), and of figures of tokens, to be divided by `tokens`."""


def objective(inputs: ObjectiveInputs, settings: ObjectiveSettings) -> Objective:
    """The loss of these rows: policy + kl_coef * KL - entropy_coef * entropy + value_coef * value."""
    mask, weights = inputs.mask, inputs.weights
    anchor = inputs.rollout_logprobs if settings.anchor == "rollout" else inputs.old_logprobs
    policy = policy_loss(PolicyInputs(inputs.logprobs, anchor, inputs.advantages, mask), settings.policy)
    importance = importance_weights(inputs.old_logprobs, inputs.rollout_logprobs, mask, settings.correction)
    terms = {"policy_loss": (weights * importance * policy.losses).sum()}
    loss = terms["policy_loss"]
    if inputs.reference_logprobs is not None:
        terms["kl_loss"] = (weights * kl_penalty(inputs.logprobs, inputs.reference_logprobs, mask)).sum()
        loss = loss + settings.kl_coef * terms["kl_loss"]
    if inputs.entropy is not None:
        terms["entropy"] = (weights * kept(inputs.entropy, mask)).sum()
        if settings.entropy_coef:
            loss = loss - settings.entropy_coef * terms["entropy"]
    if inputs.values is not None:
        assert inputs.old_values is not None
        assert inputs.returns is not None
        losses = value_losses(inputs.values, inputs.old_values, inputs.returns, mask, clip=VALUE_CLIP)
        terms["value_loss"] = (weights * losses).sum()
        loss = loss + settings.value_coef * terms["value_loss"]
    figures = {
        "tokens": mask.sum(),
        "clipped": policy.clipped.sum(),
        "approx_kl": masked_sum(torch.expm1(policy.log_ratio) - policy.log_ratio, mask),
        "importance": masked_sum(importance, mask),
    }
    return Objective(loss, {name: float(value.detach()) for name, value in (terms | figures).items()})


def value_losses(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, *, clip: float
) -> torch.Tensor:
    """[B, R]: max((v - G)^2, (old + clip(v - old, -clip, clip) - G)^2) / 2, 0 outside the bool `mask` (the PPO2 of
    OpenAI's baselines)."""
    near = old_values + kept(values - old_values, mask).clamp(-clip, clip)
    return torch.maximum(kept(values - returns, mask).square(), kept(near - returns, mask).square()) / 2
