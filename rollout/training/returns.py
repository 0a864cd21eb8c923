"""Returns and advantages along a row's sampled tokens. What lies between them (tools, padding) is stepped over: it
neither discounts nor cuts, so padding and the length of a tool's answer change nothing."""

from __future__ import annotations

import torch

__all__ = ["discounted_returns", "generalized_advantages"]


def discounted_returns(rewards: torch.Tensor, mask: torch.Tensor, *, gamma: float) -> torch.Tensor:
    """[B, R]: G_t = r_t + gamma * G_{t+1} over the True of `mask`, 0 elsewhere. `rewards` are [B, R]."""
    returns = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for t in range(rewards.shape[1] - 1, -1, -1):
        running = torch.where(mask[:, t], rewards[:, t] + gamma * running, running)
        returns[:, t] = torch.where(mask[:, t], running, returns[:, t])
    return returns


def generalized_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, *, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(advantages, returns), both [B, R], 0 outside `mask`:

    delta_t = r_t + gamma * V_{t+1} - V_t,  A_t = delta_t + gamma * lam * A_{t+1},  G_t = A_t + V_t

    where t+1 is the next True of `mask`, and V and A behind the last one are 0: a trajectory that has ended, by an
    answer or by a limit, is worth nothing more.
    """
    advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    running = torch.zeros_like(following)
    for t in range(rewards.shape[1] - 1, -1, -1):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * following - values[:, t]
        running = torch.where(here, delta + gamma * lam * running, running)
        following = torch.where(here, values[:, t], following)
        advantages[:, t] = torch.where(here, running, advantages[:, t])
        returns[:, t] = torch.where(here, running + values[:, t], returns[:, t])
    return advantages, returns
