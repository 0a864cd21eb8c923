"""Weights that aggregate the losses of tokens into one number: the loss is `(weights * losses).sum()`.

They are computed once for all rows of an optimizer step, so the sum may be taken in any parts: gradient accumulation
gives the gradient of one large batch, however the rows are split. Rows without a token in the mask are in no mean.
"""

from __future__ import annotations

import torch

AGGREGATIONS = ("token_mean", "sequence_mean", "prompt_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm")


def token_weights(
    mask: torch.Tensor, aggregation: str, *, groups: torch.Tensor | None = None, norm: int | None = None
) -> torch.Tensor:
    """float32 [B, R] for the bool `mask` [B, R]; 0 outside it.

    - `token_mean`: each token weighs the same (DAPO, arXiv:2503.14476, equation 8);
    - `sequence_mean`: the mean of the rows' means over their tokens (GRPO, arXiv:2402.03300, equation 3);
    - `prompt_mean`: the mean over groups of the mean over a group's tokens; needs `groups`, int64 [B];
    - `seq_mean_token_sum`: the mean over rows of their sums;
    - `seq_mean_token_sum_norm`: the same divided by `norm`, the longest response that a run allows (Dr. GRPO,
      arXiv:2503.20783).
    """
    rows, tokens = mask.any(1).sum().clamp(min=1), mask.sum(1, keepdim=True)
    counted = mask.double()
    if aggregation == "token_mean":
        weights = counted / mask.sum().clamp(min=1)
    elif aggregation == "sequence_mean":
        weights = counted / tokens.clamp(min=1) / rows
    elif aggregation == "prompt_mean":
        assert groups is not None
        size = int(groups.max()) + 1
        each = torch.zeros(size, dtype=torch.int64, device=mask.device).index_add(0, groups, tokens[:, 0])
        weights = counted / each.clamp(min=1)[groups].unsqueeze(1) / (each > 0).sum().clamp(min=1)
    elif aggregation == "seq_mean_token_sum":
        weights = counted / rows
    else:
        assert aggregation == "seq_mean_token_sum_norm"
        assert norm is not None
        weights = counted / rows / norm
    return weights.float()
