"""Sums and means over the tokens that count. What a mask leaves out may hold anything, NaN included: it reaches neither
a value nor a gradient."""

from __future__ import annotations

import torch

_WHITEN_EPS = 1e-8
"""Term added to the variance, as in verl's `masked_whiten`."""


def kept(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`values` where the bool `mask` of the same shape is True, 0 elsewhere."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(values: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Sum over the True of `mask`, of everything or along `dim`."""
    cut = kept(values, mask)
    return cut.sum() if dim is None else cut.sum(dim)


def masked_mean(values: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Mean over the True of `mask`; 0 where there is none."""
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(values, mask, dim) / count.clamp(min=1)


def whitened(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`values` shifted and scaled to mean 0 and variance 1 (unbiased) over the True of `mask`, 0 elsewhere.

    A single token becomes 0. Computed in float64, returned in the type of `values`.
    """
    wide = kept(values, mask).double()
    centred = kept(wide - masked_mean(wide, mask), mask)
    variance = centred.square().sum() / (mask.sum() - 1).clamp(min=1)
    return (centred * torch.rsqrt(variance + _WHITEN_EPS)).to(values.dtype)
