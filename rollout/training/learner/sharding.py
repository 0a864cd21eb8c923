"""Splits a model over the processes of a group with FSDP2: each holds a part of every weight, gradient and moment.

Invariants: no process but the first ever holds the whole model, and its copy is on the CPU and is gone afterwards; on
the device a layer is whole only while it is filled or computed; a split model has the names and shapes of the one that
it was made of. Reductions of gradients are in float32.

Layers that leave weights without a gradient for some inputs (experts that are modules of their own) are not for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from rollout.training.learner.token_model import TokenModel


def split(blank: TokenModel, filled: TokenModel | None, mesh: DeviceMesh, *, device: str, dtype: str) -> None:
    """Gives `blank`, which is on the device `meta`, the weights of the first process's `filled` and splits it.

    `filled` is None at the others. `dtype` is that of `PolicySettings`: with bfloat16 layers are gathered and computed
    in it, which halves what is sent; embeddings and head stay float32, and so does the sum that layers add to.
    """
    states = {} if filled is None else dict(_tensors(filled, ""))
    if dtype == "bfloat16":
        layers = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    else:
        layers = MixedPrecisionPolicy()
    done: set[torch.nn.Module] = set()
    for name, layer in _layers(blank):
        _fill(layer, f"{name}.", states, done, device)
        fully_shard(layer, mesh=mesh, mp_policy=layers)
    _fill(blank, "", states, done, device)
    fully_shard(blank, mesh=mesh)


def put_together(module: torch.nn.Module) -> None:
    """Puts the weights back that the last forward pass has gathered and left, so that all of them are parts again."""
    if isinstance(module, FSDPModule):
        module.reshard()


def part_of(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor that every process has, split as `like` is; the tensor itself where `like` is not
    split."""
    if not isinstance(like, DTensor):
        return whole
    moved = whole.to(device=like.device, dtype=like.dtype)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None).clone()


def _layers(blank: TokenModel) -> Iterator[tuple[str, torch.nn.Module]]:
    """The layers that are gathered one after the other: what transformers says must stay on one device."""
    kinds = set(getattr(blank.model, "_no_split_modules", None) or ())
    for name, module in blank.named_modules():
        if type(module).__name__ in kinds:
            yield name, module


@torch.no_grad()
def _fill(
    module: torch.nn.Module, prefix: str, states: dict[str, torch.Tensor], done: set[torch.nn.Module], device: str
) -> None:
    """Makes room for what `module` holds outside of `done`, and takes it from the first process."""
    fresh = [each for each in module.modules() if each not in done]
    for each in fresh:
        each.to_empty(device=device, recurse=False)
    done.update(fresh)
    if isinstance(module, TokenModel):
        module.model.tie_weights()  # room was made twice for what is tied
    names = {id(each) for each in fresh}
    for name, tensor in _tensors(module, prefix, only=names):
        if states:
            tensor.copy_(states[name])
        dist.broadcast(tensor, src=0)


def _tensors(module: torch.nn.Module, prefix: str, only: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers by name; only those of the modules with these ids themselves."""
    for name, each in module.named_modules(prefix=prefix.rstrip(".")):
        if only is None or id(each) in only:
            for kinds in (each.named_parameters(recurse=False), each.named_buffers(recurse=False)):
                for own, tensor in kinds:
                    yield f"{name}.{own}" if name else own, tensor.data
