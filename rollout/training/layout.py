"""Where the tokens of some rows lie in a model's input, and which positions are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rollout.batch import RolloutBatch

__all__ = ["IDLE", "Layout", "row_lengths"]


def row_lengths(batch: RolloutBatch, mask: torch.Tensor) -> list[int]:
    """Of each row, the ids up to the last True of `mask` (bool [B, R]); 0 where there is none. What lies behind needs
    no computing."""
    width = mask.shape[1]
    last = torch.where(mask, torch.arange(1, width + 1), 0).amax(1)
    prompt = batch.attention_mask[:, : batch.prompts.shape[1]].sum(1)
    lengths: list[int] = torch.where(last > 0, prompt + last, 0).tolist()
    return lengths


@dataclass(frozen=True, slots=True)
class Layout:
    """N tokens are asked for. Tensors are on the CPU."""

    input_ids: torch.Tensor
    """int64 [b, T], padded on the right."""
    position_ids: torch.Tensor
    """int64, like `input_ids`."""
    before: torch.Tensor
    """int64 [N]: place, in the flattened input, of the id before each token."""
    targets: torch.Tensor
    """int64 [N]: the tokens."""
    mask: torch.Tensor
    """bool [b, R]: where they belong, in the order of `targets`."""

    @classmethod
    def of(cls, batch: RolloutBatch, rows: list[int], mask: torch.Tensor) -> Layout:
        """Of `rows`, each of which has a True in `mask`, in their order. The prompt has at least one id."""
        lengths, width = row_lengths(batch, mask), batch.prompts.shape[1]
        ids, before, targets = [], [], []
        longest = max(lengths[row] for row in rows)
        for place, row in enumerate(rows):
            prompt = int(batch.attention_mask[row, :width].sum())
            ids.append(batch.input_ids[row, width - prompt : width - prompt + lengths[row]])
            at = mask[row].nonzero().squeeze(1)
            before.append(place * longest + prompt + at - 1)
            targets.append(batch.responses[row, at])
        inputs = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        positions = torch.arange(longest).expand(inputs.shape)
        return cls(inputs, positions, torch.cat(before), torch.cat(targets), mask[rows])

    def inputs(self, device: str) -> dict[str, Any]:
        """What the model is called with. Padding on the right is behind everything that is asked for, so the causal
        mask is all that rows need."""
        return {"input_ids": self.input_ids.to(device), "position_ids": self.position_ids.to(device)}

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """[N] -> [b, R], 0 where nothing was asked for."""
        target = torch.zeros(self.mask.shape, dtype=values.dtype, device=values.device)
        return target.masked_scatter(self.mask.to(values.device), values)


IDLE = Layout(
    input_ids=torch.zeros(1, 2, dtype=torch.int64),
    position_ids=torch.arange(2).unsqueeze(0),
    before=torch.zeros(1, dtype=torch.int64),
    targets=torch.zeros(1, dtype=torch.int64),
    mask=torch.ones(1, 1, dtype=torch.bool),
)
"""One token of no row, for a process that has nothing to compute while others do."""
