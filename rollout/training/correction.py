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
_MODES = ("truncate", "mask")


@dataclass(frozen=True)
class CorrectionSettings:
    """How tokens are weighed that the trained weights did not sample."""

    level: str = setting(
        "none", help="none, token, sequence (product of its tokens' ratios) or geometric (their geometric mean)."
    )
    cap: float = setting(2.0, help="Largest weight; usual are 2 for token, 5 for sequence.")
    mode: str = setting("truncate", help="Weights beyond cap become cap (truncate), or their tokens count 0 (mask).")
    floor: float = setting(0.0, help="mask: tokens whose weight is below this count 0 too.")

    def validate(self) -> None:
        """ConfigError naming the setting that is wrong."""
        for name, allowed in (("level", _LEVELS), ("mode", _MODES)):
            if getattr(self, name) not in allowed:
                value = getattr(self, name)
                raise ConfigError(f"loss.correction.{name} is {value!r}, must be one of: {', '.join(allowed)}")
        if not 1 <= self.cap < float("inf"):
            raise ConfigError(f"loss.correction.cap is {self.cap}, must be at least 1 and finite")
        if not 0 <= self.floor < 1:
            raise ConfigError(f"loss.correction.floor is {self.floor}, must be from 0 to below 1")
        if self.floor and self.mode != "mask":
            raise ConfigError("loss.correction.floor is set, which has no meaning with mode=truncate")


def importance_weights(
    old_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, mask: torch.Tensor, settings: CorrectionSettings
) -> torch.Tensor:
    """[B, R], without gradient; 1 everywhere with level none, 0 outside the bool `mask` otherwise. A mean over tokens
    still counts those whose weight became 0."""
    if settings.level == "none":
        return torch.ones_like(old_logprobs)
    log_ratio = kept(old_logprobs.detach() - rollout_logprobs, mask)
    if settings.level == "sequence":
        log_ratio = masked_sum(log_ratio, mask, 1).unsqueeze(1).expand(mask.shape)
    elif settings.level == "geometric":
        log_ratio = masked_mean(log_ratio, mask, 1).unsqueeze(1).expand(mask.shape)
    weights = log_ratio.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).exp()
    if settings.mode == "truncate":
        weights = weights.clamp(max=settings.cap)
    else:
        weights = kept(weights, (weights <= settings.cap) & (weights >= settings.floor))
    return kept(weights, mask)
