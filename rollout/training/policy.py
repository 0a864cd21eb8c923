"""The model that is trained: logprobs, entropies and values of a batch's sampled tokens.

Invariants: logprobs are those that the engine would give for the same ids and weights (to 1e-4 in float32); a row's
result does not depend on its neighbours, packed or padded; positions that are not asked for cost no logits. Nothing is
dropped out: a policy that is not the one that sampled would have other ratios than 1.

It loads Hugging Face causal language models whose logits are one projection of the last hidden states, and refuses
others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fairbox.config import setting
from fairbox.errors import ConfigError, FairboxError
from rollout.batch import RolloutBatch
from rollout.engines.decoder import load_model
from rollout.training.adapters import add_adapters, plain_state, without_adapters
from rollout.training.head import token_logprobs
from rollout.training.layout import Layout

__all__ = ["Policy", "PolicySettings", "TokenValues"]

_HEAD_TOLERANCE = 1e-3
"""Logits of a chunk may differ from the model's own by rounding, but not by a scale or a cap behind the head."""


@dataclass(frozen=True)
class PolicySettings:
    """The model that is trained, and how it is computed."""

    dtype: str = setting("float32", help="float32, or bfloat16: computes in it, with weights and sums in float32.")
    device: str = setting("cpu", help="Device of torch: cpu, cuda, cuda:1.")
    lora_rank: int = setting(0, help="Rank of LoRA adapters, which are then all that is trained; 0: all weights are.")
    lora_alpha: float = setting(32.0, help="Their scale is this / lora_rank.")
    lora_targets: list[str] = setting(
        factory=lambda: ["all-linear"], help="Linear layers that get one, by the ends of their names."
    )
    packing: bool = setting(
        False, help="Rows one behind the other, without padding: its attention costs the square of micro_tokens."
    )
    micro_tokens: int = setting(4096, help="Tokens that are computed at once; bounds memory.")
    chunk_tokens: int = setting(512, help="Tokens whose logits are in memory at once.")
    recompute: bool = setting(False, help="Compute layers again in the backward pass: less memory, a third more time.")

    def validate(self) -> None:
        """ConfigError naming the setting that is wrong."""
        if self.dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"policy.dtype is {self.dtype!r}, must be one of: float32, bfloat16")
        for name, least in (("lora_rank", 0), ("micro_tokens", 1), ("chunk_tokens", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"policy.{name} is {getattr(self, name)}, must be at least {least}")
        if not 0 < self.lora_alpha < float("inf"):
            raise ConfigError(f"policy.lora_alpha is {self.lora_alpha}, must be positive")
        if not self.lora_targets:
            raise ConfigError("policy.lora_targets is empty, must name layers, or be [all-linear]")
        try:
            torch.device(self.device)
        except RuntimeError:
            raise ConfigError(f"policy.device is {self.device!r}, which is no device of torch") from None


@dataclass(frozen=True, slots=True)
class TokenValues:
    """float32 [b, R] for b rows of a batch; 0 at tokens that were not asked for."""

    logprobs: torch.Tensor
    entropy: torch.Tensor
    values: torch.Tensor | None
    """Of the value head, before each token; None without one."""


class Policy:
    """`Policy.load(model_dir, settings)`; then `compute(batch, rows, mask)`."""

    def __init__(self, model: Any, settings: PolicySettings, *, value_head: bool, reference: Any = None) -> None:
        self.model = model
        """transformers' own, with adapters in it where there are some."""
        self.settings = settings
        self.value_head = torch.nn.Linear(model.config.hidden_size, 1) if value_head else None
        self._reference = reference

    @classmethod
    def load(
        cls,
        model_dir: Path,
        settings: PolicySettings,
        *,
        value_head: bool = False,
        reference: bool = False,
        seed: int = 0,
    ) -> Policy:
        """From a folder in the layout of the Hugging Face hub. `reference` keeps the first weights too: for nothing
        with adapters, as a second model without. Raises FairboxError for models that can't be trained here."""
        model = _without_dropout(load_model(model_dir))
        _check_head(model, str(model_dir))
        second = None
        if settings.lora_rank:
            rank, alpha, targets = settings.lora_rank, settings.lora_alpha, settings.lora_targets
            add_adapters(model, rank=rank, alpha=alpha, targets=targets, seed=seed)
        else:
            second = load_model(model_dir).requires_grad_(False) if reference else None
            model.requires_grad_(True)
        policy = cls(model, settings, value_head=value_head, reference=second)
        policy._place()
        return policy

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """What is trained, by name, each once."""
        found = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        if self.value_head is not None:
            found |= {f"value_head.{name}": value for name, value in self.value_head.named_parameters()}
        return found

    def state(self) -> dict[str, torch.Tensor]:
        """The weights as an engine takes them: those of a plain model, with what was learned."""
        return plain_state(self.model)

    def trained_state(self) -> dict[str, torch.Tensor]:
        """The parameters that are trained, on the CPU, for a checkpoint."""
        return {name: value.detach().cpu().clone() for name, value in self.named_parameters().items()}

    @torch.no_grad()
    def load_trained_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Takes what `trained_state` gave. Raises FairboxError for another model's."""
        mine = self.named_parameters()
        if {name: value.shape for name, value in mine.items()} != {name: value.shape for name, value in state.items()}:
            raise FairboxError("the checkpoint's parameters have other names or shapes than the model's")
        for name, value in state.items():
            mine[name].copy_(value)

    @contextlib.contextmanager
    def as_reference(self) -> Iterator[None]:
        """Within it, `compute` is of the weights that were there before training."""
        if self._reference is None:
            with without_adapters(self.model):
                yield
            return
        trained, self.model = self.model, self._reference
        try:
            yield
        finally:
            self.model = trained

    def compute(
        self,
        batch: RolloutBatch,
        rows: list[int],
        mask: torch.Tensor,
        *,
        temperature: float,
        entropy_gradient: bool = False,
    ) -> TokenValues:
        """For `rows` of the batch, at the True of `mask` (bool [B, R]), in one forward pass.

        Gradients flow where they are enabled.
        """
        device = self.settings.device
        layout = Layout.of(batch, rows, mask, packed=self.settings.packing)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=self.settings.dtype == "bfloat16"):
            output = self.model.base_model(**layout.inputs(device), use_cache=False)
            hidden = output.last_hidden_state.flatten(0, 1)[layout.before.to(device)]
            logprobs, entropy = token_logprobs(
                hidden,
                layout.targets.to(device),
                self.model.get_output_embeddings(),
                temperature=temperature,
                chunk=self.settings.chunk_tokens,
                entropy_gradient=entropy_gradient,
            )
        values = None
        if self.value_head is not None:
            values = layout.spread(self.value_head(hidden.float()).squeeze(-1))
        return TokenValues(layout.spread(logprobs), layout.spread(entropy), values)

    def _place(self) -> None:
        for module in (self.model, self.value_head, self._reference):
            if module is not None:
                module.to(self.settings.device)
        if self.value_head is not None:
            torch.nn.init.zeros_(self.value_head.weight)
            torch.nn.init.zeros_(self.value_head.bias)
        if self.settings.recompute:
            how = {"use_reentrant": False}  # with True, adapters under frozen layers would get no gradient
            if hasattr(self.model, "activation_checkpointing_enable"):  # later versions of transformers 5 renamed it
                self.model.activation_checkpointing_enable(activation_checkpointing_kwargs=how)
            else:
                self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
            self.model.train()  # transformers recomputes in this mode only; nothing here drops out


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
