"""Training on rollouts: advantages and losses as pure functions of tensors, and the model. Importing it costs torch."""

from rollout.training.algo.advantages import Advantages, AdvantageSettings, Outcomes, estimate_advantages
from rollout.training.algo.aggregation import AGGREGATIONS, token_weights
from rollout.training.algo.objective import (
    CorrectionSettings,
    ObjectiveInputs,
    ObjectiveSettings,
    importance_weights,
    kl_penalty,
    objective,
    value_losses,
)
from rollout.training.algo.policy_losses import PolicyInputs, PolicyLossSettings, policy_loss
from rollout.training.learner.policy import Policy, PolicySettings

__all__ = [
    "AGGREGATIONS",
    "AdvantageSettings",
    "Advantages",
    "CorrectionSettings",
    "ObjectiveInputs",
    "ObjectiveSettings",
    "Outcomes",
    "Policy",
    "PolicyInputs",
    "PolicyLossSettings",
    "PolicySettings",
    "estimate_advantages",
    "importance_weights",
    "kl_penalty",
    "objective",
    "policy_loss",
    "token_weights",
    "value_losses",
]
