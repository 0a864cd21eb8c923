"""Figures of a training step, by the names under which they are written."""

from __future__ import annotations

import torch

from rollout.batch import RolloutBatch
from rollout.training.masked import kept, masked_mean

__all__ = ["StepFigures", "agreement", "batch_figures", "of_version"]

_OF_TOKENS = ("clipped", "approx_kl", "importance")
"""Sums that are divided by the tokens; the others are terms of the loss, whose parts add up to an optimizer step's."""


class StepFigures:
    """Collects what the parts of a step say."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self.updates = 0
        """Optimizer steps so far."""
        self._grad_norm = 0.0

    def add(self, sums: dict[str, float]) -> None:
        """Of one micro-batch."""
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def updated(self, grad_norm: float) -> None:
        """An optimizer step was made, with a gradient of this norm before it was scaled down."""
        self.updates += 1
        self._grad_norm += grad_norm

    def means(self) -> dict[str, float]:
        """Over the tokens, or over the optimizer steps."""
        tokens = max(1.0, self._sums.get("tokens", 0.0))
        updates = max(1, self.updates)
        found = {
            name: value / (tokens if name in _OF_TOKENS else updates)
            for name, value in self._sums.items()
            if name != "tokens"
        }
        return found | {"updates": float(self.updates), "grad_norm": self._grad_norm / updates}


def batch_figures(batch: RolloutBatch, trained: torch.Tensor) -> dict[str, float]:
    """Of the trajectories: rewards of scored ones alone. `trained` is the bool [B, R] of tokens that the loss sees."""
    scored = batch.rewards[batch.scored & batch.is_last_step]
    return {
        "reward": float(scored.mean()) if len(scored) else float("nan"),
        "reward_std": float(scored.std(correction=0)) if len(scored) else float("nan"),
        "trajectories": float(batch.is_last_step.sum()),
        "masked": float((batch.masked & batch.is_last_step).sum()),
        "trained_rows": float(trained.any(1).sum()),
        "trained_tokens": float(trained.sum()),
        "response_tokens": float(batch.attention_mask[:, batch.prompts.shape[1] :].sum()) / len(batch),
        "turns": float(batch.turns.float().mean()),
    }


def of_version(batch: RolloutBatch, version: str) -> torch.Tensor:
    """bool [B, R]: ids that these weights sampled. Where the batch has none of theirs because it names its weights in a
    way of its own, all of it."""
    if version in batch.versions:
        return batch.weight_versions == batch.versions.index(version)
    named = any(name.startswith("step-") for name in batch.versions)
    return torch.full(batch.weight_versions.shape, not named)


def agreement(trainer: torch.Tensor, engine: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """How far logprobs of trainer and engine are apart over the True of `mask`, in natural logarithms. With weights of
    one version and both in float32 it is rounding."""
    difference = kept(trainer - engine, mask).abs()
    return {
        "logprob_difference": float(masked_mean(difference, mask)),
        "logprob_difference_max": float(difference.max()),
    }
