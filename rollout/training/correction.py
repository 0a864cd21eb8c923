"""Importance weights for tokens that other weights sampled than those that are trained: stale ones, and those of an
engine that computes differently.

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
from rollout.training.masked import kept, masked_mean, masked_sum

__all__ = ["CorrectionSettings", "importance_weights"]

MAX_LOG_WEIGHT = 20.0
"""Of a sequence's sum of log ratios; far beyond any cap."""
_LEVELS = ("none", "token", "sequence", "geometric")


@dataclass(frozen=True)
class CorrectionSettings:
    """How tokens are weighed that the trained weights did not sample."""

    level: str = setting(
        "none", help="none, token, sequence (product of its tokens' ratios) or geometric (their geometric mean)."
    )
    cap: float = setting(
        2.0, help="Largest weight, which those beyond it become; usual are 2 for token, 5 for sequence."
    )

    def validate(self) -> None:
        """ConfigError naming the setting that is wrong."""
        if self.level not in _LEVELS:
            raise ConfigError(f"loss.correction.level is {self.level!r}, must be one of: {', '.join(_LEVELS)}")
        if not 1 <= self.cap < float("inf"):
            raise ConfigError(f"loss.correction.cap is {self.cap}, must be at least 1 and finite")


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
