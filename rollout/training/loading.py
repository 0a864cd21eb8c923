"""Loads the module that is trained: a model of a folder, with adapters and a value head where they are asked for, whole
or split over processes. Models that can't be trained here are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fairbox.errors import FairboxError
from rollout.engines.decoder import blank_model, load_model
from rollout.training.adapters import add_adapters
from rollout.training.policy_settings import PolicySettings
from rollout.training.token_model import TokenModel

__all__ = ["Split", "load_token_model"]

Split = Callable[[TokenModel, TokenModel | None], None]
"""Splits a model without weights over processes: `sharding.split` with its settings."""

_HEAD_TOLERANCE = 1e-3
"""Logits of a chunk may differ from the model's own by rounding, but not by a scale or a cap behind the head."""


def load_token_model(
    model_dir: Path,
    settings: PolicySettings,
    *,
    adapters: bool,
    value_head: bool,
    seed: int,
    first: bool = True,
    split: Split | None = None,
) -> TokenModel:
    """On the device of the settings. With `split` only the `first` process reads the weights. Raises FairboxError."""

    def made(model: Any) -> TokenModel:
        return _token_model(_without_dropout(model), settings, adapters=adapters, value_head=value_head, seed=seed)

    filled = None
    if first:
        model = load_model(model_dir)
        _check_head(model, str(model_dir))
        filled = made(model)
    if split is None:
        assert filled is not None
        found = filled.to(settings.device)
    else:
        with torch.device("meta"):
            found = made(blank_model(model_dir))
        split(found, filled)
    if settings.recompute:
        _recompute(found.model)
    return found


def _token_model(model: Any, settings: PolicySettings, *, adapters: bool, value_head: bool, seed: int) -> TokenModel:
    if adapters:
        rank, alpha, targets = settings.lora_rank, settings.lora_alpha, settings.lora_targets
        add_adapters(model, rank=rank, alpha=alpha, targets=targets, seed=seed)
    else:
        model.requires_grad_(True)
    head = torch.nn.Linear(model.config.hidden_size, 1) if value_head else None
    if head is not None:
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
    return TokenModel(model, head)


def _recompute(model: Any) -> None:
    how = {"use_reentrant": False}  # with True, adapters under frozen layers would get no gradient
    if hasattr(model, "activation_checkpointing_enable"):  # later versions of transformers 5 renamed it
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=how)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    model.train()  # transformers recomputes in this mode only; nothing here drops out


def _without_dropout(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    return model


@torch.no_grad()
def _check_head(model: Any, where: str) -> None:
    """Raises FairboxError where a model does more behind its last hidden states than project them."""
    head, ids = model.get_output_embeddings(), torch.arange(4).unsqueeze(0)
    if head is None or not hasattr(model, "base_model"):
        raise FairboxError(f"{where}: has no output embeddings, so it is no causal language model")
    own = model(input_ids=ids, use_cache=False).logits.float()
    ours = head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state).float()
    if not torch.allclose(own, ours, rtol=_HEAD_TOLERANCE, atol=_HEAD_TOLERANCE):
        raise FairboxError(f"{where}: scales or caps its logits behind the head, which training does not know")
