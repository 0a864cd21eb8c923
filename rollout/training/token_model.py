"""The model with its value head as one module, so that all that needs weights happens in one forward call: the weights
of a sharded module are there only within it."""

from __future__ import annotations

from typing import Any

import torch

from rollout.training.head import token_logprobs

__all__ = ["TokenModel"]


class TokenModel(torch.nn.Module):
    """`model` is transformers' own causal model; `value_head` is None where no values are asked for."""

    def __init__(self, model: Any, value_head: torch.nn.Linear | None) -> None:
        super().__init__()
        self.model = model
        self.value_head = value_head

    def forward(
        self,
        inputs: dict[str, Any],
        before: torch.Tensor,
        targets: torch.Tensor,
        *,
        temperature: float,
        chunk: int,
        entropy_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """(logprobs, entropies, values), each [N], of the tokens `targets` (int64 [N]), each behind the id whose place
        in the flattened input `before` (int64 [N]) says. `inputs` are the model's."""
        hidden = self.model.base_model(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)[before]
        logprobs, entropy = token_logprobs(
            hidden,
            targets,
            self.model.get_output_embeddings(),
            temperature=temperature,
            chunk=chunk,
            entropy_gradient=entropy_gradient,
        )
        values = None
        if self.value_head is not None:
            with torch.autocast(hidden.device.type, enabled=False):
                values = self.value_head(hidden.float()).squeeze(-1).clone()  # FSDP takes no views
        return logprobs, entropy, values
