"""The model with its value head as one module, so that all that needs weights happens in one forward call: the weights
of a sharded module are there only within it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

CHUNK_TOKENS = 512
"""Tokens whose logits are in memory at once."""


def token_logprobs(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    *,
    temperature: float,
    chunk: int,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(logprobs [N], entropies [N]), float32, for the last hidden states [N, H] and the ids int64 [N] that follow them.

    Both are of softmax(logits / temperature), as engines give them; temperature 0, which is greedy, counts as 1.
    Without `entropy_gradient` the entropies are figures only. `chunk` positions are computed at once; each chunk's
    logits are computed again in the backward pass.
    """
    logprobs, entropies = [], []
    scale = temperature or 1.0
    for start in range(0, len(hidden), chunk):
        part, ids = hidden[start : start + chunk], targets[start : start + chunk]
        if torch.is_grad_enabled():
            found = checkpoint(_chunk, part, ids, head, scale, entropy_gradient, use_reentrant=False)
        else:
            found = _chunk(part, ids, head, scale, entropy_gradient)
        logprobs.append(found[0])
        entropies.append(found[1])
    if not logprobs:
        empty = hidden.new_zeros(0, dtype=torch.float32)
        return empty, empty
    return torch.cat(logprobs), torch.cat(entropies)


def _chunk(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    scale: float,
    entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    everything = torch.log_softmax(head(hidden).float() / scale, dim=-1)
    chosen = everything.gather(1, targets.unsqueeze(1)).squeeze(1)
    for_entropy = everything if entropy_gradient else everything.detach()
    return chosen, -(for_entropy.exp() * for_entropy).sum(-1)


class TokenModel(torch.nn.Module):
    """`model` is transformers' own causal model; `value_head` is None if no values are asked for. `exact_head`: logits
    are computed in float32, whatever the layers are computed in: bfloat16 has three digits, and logits are large."""

    def __init__(self, model: Any, value_head: torch.nn.Linear | None, *, exact_head: bool = True) -> None:
        super().__init__()
        self.model = model
        self.value_head = value_head
        self._exact_head = exact_head

    def forward(
        self,
        input_ids: torch.Tensor,
        before: torch.Tensor,
        targets: torch.Tensor,
        *,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """(logprobs, entropies, values), each [N], of the tokens `targets` (int64 [N]), each behind the id whose place
        in the flattened `input_ids` (int64 [b, T]) `before` (int64 [N]) says."""
        hidden = self.model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state.flatten(0, 1)[before]
        logprobs, entropy = token_logprobs(
            hidden,
            targets,
            self._logits if self._exact_head else self.model.get_output_embeddings(),
            temperature=temperature,
            chunk=CHUNK_TOKENS,
            entropy_gradient=entropy_gradient,
        )
        values = None
        if self.value_head is not None:
            with torch.autocast(hidden.device.type, enabled=False):
                values = self.value_head(hidden.float()).squeeze(-1).clone()  # FSDP takes no views
        return logprobs, entropy, values

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            logits: torch.Tensor = self.model.get_output_embeddings()(hidden.float())
            return logits
