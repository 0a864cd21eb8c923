"""Training on rollouts: advantages and losses as pure functions of tensors, and the model. Importing it costs torch."""

from rollout.training.algo.advantages import ESTIMATORS, Advantages, AdvantageSettings, Outcomes, estimate_advantages
from rollout.training.algo.aggregation import AGGREGATIONS, token_weights
from rollout.training.algo.objective import (
    CorrectionSettings,
    Objective,
    ObjectiveInputs,
    ObjectiveSettings,
    importance_weights,
    kl_penalty,
    objective,
    value_losses,
)
from rollout.training.algo.policy_losses import (
    POLICY_LOSSES,
    PolicyInputs,
    PolicyLossSettings,
    TokenLosses,
    policy_loss,
)
from rollout.training.learner.policy import Policy, PolicySettings, TokenValues

__all__ = [
    "AGGREGATIONS",
    "ESTIMATORS",
    "POLICY_LOSSES",
    "AdvantageSettings",
    "Advantages",
    "CorrectionSettings",
    "Objective",
    "ObjectiveInputs",
    "ObjectiveSettings",
    "Outcomes",
    "Policy",
    "PolicyInputs",
    "PolicyLossSettings",
    "PolicySettings",
    "TokenLosses",
    "TokenValues",
    "estimate_advantages",
    "importance_weights",
    "kl_penalty",
    "objective",
    "policy_loss",
    "token_weights",
    "value_losses",
]
