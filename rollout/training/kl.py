"""Estimates of KL(policy || reference) at sampled tokens (J. Schulman, "Approximating KL divergence", 2020).

With q the policy that sampled and d = log p - log q: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d. k1 and k3 have the
right mean, k3 is never negative. As a loss, k2 has the gradient of the reverse KL and k1 one whose mean is 0: k1 is for
rewards. docs/training.md says which to take where.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from rollout.training.masked import kept

__all__ = ["KL_ESTIMATORS", "kl_penalty"]

MAX_LOG_RATIO = 20.0
"""Beyond it exp would leave float32's useful range; the gradient is 0 there."""


def kl_penalty(logprobs: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, *, kind: str) -> torch.Tensor:
    """[B, R]: the estimate `kind` (k1, k2, k3) at each token of the bool `mask`, 0 elsewhere. The gradient flows into
    `logprobs` alone."""
    difference = kept(reference.detach() - logprobs, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return KL_ESTIMATORS[kind](difference)


def _k3(difference: torch.Tensor) -> torch.Tensor:
    # expm1 keeps the digits that exp(d) - 1 loses near 0, where policies usually are.
    return torch.expm1(difference) - difference


KL_ESTIMATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "k1": torch.neg,
    "k2": lambda difference: difference.square() / 2,
    "k3": _k3,
}
