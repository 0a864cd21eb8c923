"""An estimate of KL(policy || reference) at sampled tokens (J. Schulman, "Approximating KL divergence", 2020)."""

from __future__ import annotations

import torch

from rollout.training.masked import kept

__all__ = ["kl_penalty"]

MAX_LOG_RATIO = 20.0
"""Beyond it exp would leave float32's useful range; the gradient is 0 there."""


def kl_penalty(logprobs: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[B, R]: exp(d) - 1 - d, d = log q - log p, at each token of the bool `mask`, 0 elsewhere: "k3", which has the
    right mean and is never negative. The gradient flows into `logprobs` alone."""
    difference = kept(reference.detach() - logprobs, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    # expm1 keeps the digits that exp(d) - 1 loses near 0, where policies usually are.
    return torch.expm1(difference) - difference
