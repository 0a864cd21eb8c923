"""Policy losses, token by token. One function for each, one table of them.

Shapes: B rows, R response positions, all float [B, R]. A loss depends on nothing outside the mask. How tokens become a
number is `rollout.training.algo.aggregation`'s; a ratio is exp(logprob - old logprob).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fairbox.config import setting
from rollout.training.algo.masked import kept, masked_mean

MAX_LOG_RATIO = 20.0
"""Bound of log ratios; beyond it a ratio is a constant: exp(20) is far outside any clip, and float32 stays finite."""
MAX_SEQUENCE_LOG_RATIO = 10.0
"""The same for GSPO's ratio of a sequence, as in verl and SkyRL."""


@dataclass(frozen=True)
class PolicyLossSettings:
    """Settings of the loss: its kind, and how far an update may go."""

    kind: str = setting(
        "ppo",
        choices=("ppo", "dual_clip", "gspo", "cispo"),
        help="ppo (clip), dual_clip, gspo (ratio of the sequence) or cispo (clipped weight).",
    )
    clip_low: float = setting(0.2, above=0, most=1, help="The ratio is clipped below 1 - this.")
    clip_high: float = setting(0.2, above=0, help="The ratio is clipped above 1 + this.")
    clip_c: float = setting(
        3.0, above=1, help="dual_clip: where the advantage is negative, the loss is at most this times it."
    )


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """Inputs of a loss."""

    logprobs: torch.Tensor
    """Logprobs of the policy that is trained; the gradient flows into these alone."""
    old_logprobs: torch.Tensor
    """Logprobs of the policy that the ratio is taken to."""
    advantages: torch.Tensor
    mask: torch.Tensor
    """bool: the tokens that count."""


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """A loss before aggregation."""

    losses: torch.Tensor
    """[B, R], to be made small; 0 outside the mask."""
    clipped: torch.Tensor
    """bool [B, R]: tokens that the clip takes out of the gradient, or bounds in it (cispo)."""
    log_ratio: torch.Tensor
    """[B, R], without gradient; 0 outside the mask."""


def policy_loss(inputs: PolicyInputs, settings: PolicyLossSettings) -> TokenLosses:
    """The loss that `settings` names."""
    return POLICY_LOSSES[settings.kind](inputs, settings)


def ppo_clip(inputs: PolicyInputs, settings: PolicyLossSettings) -> TokenLosses:
    """-min(r A, clip(r, 1 - low, 1 + high) A) (Schulman et al., arXiv:1707.06347, equation 7)."""
    log_ratio = _log_ratio(inputs)
    losses, clipped = _clipped(log_ratio.exp(), inputs, settings)
    return _token_losses(losses, clipped, log_ratio, inputs)


def dual_clip(inputs: PolicyInputs, settings: PolicyLossSettings) -> TokenLosses:
    """The same as ppo_clip, but at most -c A if A < 0 (Ye et al., arXiv:1912.09729, equation 5)."""
    log_ratio = _log_ratio(inputs)
    losses, clipped = _clipped(log_ratio.exp(), inputs, settings)
    most = -settings.clip_c * inputs.advantages
    bounded = (inputs.advantages < 0) & (losses > most)
    return _token_losses(torch.where(bounded, most, losses), clipped | bounded, log_ratio, inputs)


def gspo(inputs: PolicyInputs, settings: PolicyLossSettings) -> TokenLosses:
    """The clip on the sequence's ratio, exp of the mean of its tokens' log ratios (Zheng et al., arXiv:2507.18071,
    GSPO-token, equation 14): its value at each token, the gradient through that token."""
    log_ratio = _log_ratio(inputs)
    sequence = masked_mean(log_ratio, inputs.mask, 1).clamp(max=MAX_SEQUENCE_LOG_RATIO).detach().unsqueeze(1)
    ratio = (sequence + log_ratio - log_ratio.detach()).exp()
    losses, clipped = _clipped(ratio, inputs, settings)
    return _token_losses(losses, clipped, log_ratio, inputs)


def cispo(inputs: PolicyInputs, settings: PolicyLossSettings) -> TokenLosses:
    """-sg(clip(r, 1 - low, 1 + high)) A log p (MiniMax-M1, arXiv:2506.13585, equation 4): the clip bounds a token's
    weight and takes no token out of the gradient."""
    log_ratio = _log_ratio(inputs)
    ratio = log_ratio.detach().exp()
    weight = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    losses = -weight * inputs.advantages * kept(inputs.logprobs, inputs.mask)
    return _token_losses(losses, weight != ratio, log_ratio, inputs)


POLICY_LOSSES: dict[str, Callable[[PolicyInputs, PolicyLossSettings], TokenLosses]] = {
    "ppo": ppo_clip,
    "dual_clip": dual_clip,
    "gspo": gspo,
    "cispo": cispo,
}


def _log_ratio(inputs: PolicyInputs) -> torch.Tensor:
    difference = kept(inputs.logprobs - inputs.old_logprobs.detach(), inputs.mask)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _clipped(
    ratio: torch.Tensor, inputs: PolicyInputs, settings: PolicyLossSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """(-min(r A, clip(r) A), where the clip is the smaller)."""
    free = ratio * inputs.advantages
    bound = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high) * inputs.advantages
    return -torch.minimum(free, bound), bound < free


def _token_losses(
    losses: torch.Tensor, clipped: torch.Tensor, log_ratio: torch.Tensor, inputs: PolicyInputs
) -> TokenLosses:
    return TokenLosses(kept(losses, inputs.mask), clipped & inputs.mask, log_ratio.detach())
