"""LoRA through peft, and what an engine needs of a model with adapters: the weights of a plain one.

The merged weights are made beside the model (base + B A * scale) and never put into it: merging in place and taking it
back again would move the base weights by rounding, a little at each sync.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fairbox.errors import FairboxError
from fairbox.extras import require

_ADAPTER = "default"


def add_adapters(model: Any, *, rank: int, alpha: float, targets: list[str], seed: int) -> None:
    """Puts LoRA beside the linear layers that `targets` names (all but the head with ["all-linear"]), and freezes the
    rest. `seed` draws the first adapters, whose outputs are 0. Raises FairboxError without peft."""
    require("policy.lora_rank", "train", "peft")
    from peft import LoraConfig, inject_adapter_in_model

    chosen: Any = targets[0] if targets == ["all-linear"] else targets
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=chosen, lora_dropout=0.0)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model, adapter_name=_ADAPTER)
    except ValueError as error:
        raise FairboxError(f"policy.lora_targets is {targets}: {error}") from None
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


@torch.no_grad()
def plain_items(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of the `state_dict` that the model would have without adapters, what they learned included, one
    after the other. Tensors without an adapter are the model's own, not copies."""
    adapted = {
        f"{name}.base_layer.weight": module
        for name, module in model.named_modules()
        if hasattr(module, "get_delta_weight")
    }
    for name, value in model.state_dict().items():
        if "lora_" not in name:
            merged = value + adapted[name].get_delta_weight(_ADAPTER) if name in adapted else value.detach()
            yield name.replace(".base_layer.", "."), merged


def plain_state(model: Any) -> dict[str, torch.Tensor]:
    """`plain_items` all at once."""
    return dict(plain_items(model))


def tied_names(model: Any) -> set[str]:
    """The names, in the `state_dict` without adapters, of weights that have another name before."""
    seen: set[int] = set()
    tied = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in seen:
            tied.add(name.replace(".base_layer.", "."))
        seen.add(id(parameter))
    return tied


@contextlib.contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """`with without_adapters(model)`: the model that was there before training."""
    layers = [module for module in model.modules() if hasattr(module, "get_delta_weight")]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
