"""Optimizer and schedule: torch's own, chosen by settings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from fairbox.config import setting

_HEAD_FACTOR = 10
"""Critics of published PPO runs learn about so many times faster than their policies: 1e-5 and 1e-6 in verl."""
_BETAS = (0.9, 0.95)
"""Decays of the means of gradients and of their squares, as published runs of reinforcement learning have them."""


@dataclass(frozen=True)
class UpdateSettings:
    """Settings of the optimizer and of its schedule."""

    lr: float = setting(
        1e-6, above=0, help="Learning rate of AdamW after its warm-up; usual with LoRA is 10 to 100 times more."
    )
    value_lr: float | None = setting(
        None,
        above=0,
        help="gae: that of the value head, which begins at 0 and has to follow the policy; none: 10 times lr.",
    )
    warmup_steps: int = setting(0, least=0, help="Steps over which the learning rate rises to lr.")
    schedule: str = setting(
        "constant",
        choices=("constant", "linear", "cosine"),
        help="Learning rate after the warm-up: constant, or linear or cosine down to 0 at the last of steps.",
    )
    max_grad_norm: float = setting(1.0, above=0, help="Gradients are scaled down to this norm.")
    epochs: int = setting(1, least=1, help="How often a step's trajectories are trained on.")
    minibatches: int = setting(1, least=1, help="Optimizer steps of one epoch, each on as many trajectories.")
    push_timeout_s: float = setting(
        600.0, above=0, help="Longest time that the engine may take to load the weights of a step, seconds."
    )


def make_optimizer(
    parameters: Iterable[torch.nn.Parameter], settings: UpdateSettings, *, head: Iterable[torch.nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """Makes AdamW. Parameters of `head`, a value head, learn at a rate of their own."""
    apart = list(head)
    others = [each for each in parameters if all(each is not one for one in apart)]
    groups: list[dict[str, Any]] = [{"params": others}]
    if apart:
        groups.append({"params": apart, "lr": settings.value_lr or _HEAD_FACTOR * settings.lr})
    return torch.optim.AdamW(groups, lr=settings.lr, betas=_BETAS, weight_decay=0.0)


def make_schedule(
    optimizer: torch.optim.Optimizer, settings: UpdateSettings, *, steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Makes the schedule: the learning rate's factor in steps 0 to `steps` - 1. It is stepped once a training step."""

    def factor(step: int) -> float:
        if step < settings.warmup_steps:
            return (step + 1) / settings.warmup_steps
        done = min(1.0, (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps))
        if settings.schedule == "linear":
            return 1.0 - done
        return 0.5 * (1 + math.cos(math.pi * done)) if settings.schedule == "cosine" else 1.0

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
