"""The model that is trained: logprobs, entropies and values of a batch's sampled tokens.

Invariants: logprobs are those that the engine would give for the same ids and weights (to 1e-4 in float32); a row's
result does not depend on its neighbours; positions that are not asked for cost no logits. Nothing is dropped out: a
policy that is not the one that sampled would have other ratios than 1.

It loads Hugging Face causal language models whose logits are one projection of the last hidden states, and refuses
others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fairbox.config import setting
from fairbox.errors import ConfigError, FairboxError
from rollout.batch import RolloutBatch
from rollout.engines.local.decoder import blank_model, load_model
from rollout.engines.local.device import check_device, check_device_name
from rollout.training.learner.adapters import add_adapters, plain_items, plain_state, tied_names, without_adapters
from rollout.training.learner.model_folder import write_model
from rollout.training.learner.peers import ALONE, Peers
from rollout.training.learner.sharding import part_of, put_together
from rollout.training.learner.token_model import TokenModel


@dataclass(frozen=True)
class PolicySettings:
    """The model that is trained, and how it is computed."""

    dtype: str = setting(
        "float32",
        choices=("float32", "bfloat16"),
        help="float32, or bfloat16: computes in it, with weights and sums in float32.",
    )
    head_dtype: str = setting(
        "float32",
        choices=("float32", "bfloat16"),
        help="With dtype=bfloat16: what logits are computed in. float32 comes nearer to the engine's logprobs.",
    )
    device: str = setting("cpu", help="Device of torch: cpu, cuda, cuda:1.")
    lora_rank: int = setting(
        0, least=0, help="Rank of LoRA adapters, which are then all that is trained; 0: all weights are."
    )
    lora_alpha: float = setting(32.0, above=0, help="Adapters are scaled by this / lora_rank.")
    lora_targets: list[str] = setting(
        factory=lambda: ["all-linear"], help="Linear layers that get an adapter, by the ends of their names."
    )
    micro_tokens: int = setting(4096, least=1, help="Tokens that are computed at once; bounds memory.")
    recompute: bool = setting(False, help="Compute layers again in the backward pass: less memory, a third more time.")

    def validate(self) -> None:
        """Raises ConfigError for what is no name of a device, and for adapters without layers."""
        if not self.lora_targets:
            raise ConfigError("policy.lora_targets is empty, must name layers, or be [all-linear]")
        check_device_name("policy.device", self.device)


def row_lengths(batch: RolloutBatch, mask: torch.Tensor) -> list[int]:
    """Number of ids of each row up to the last True of `mask` (bool [B, R]); 0 if there is none. Ids behind it need no
    computing."""
    width = mask.shape[1]
    last = torch.where(mask, torch.arange(1, width + 1), 0).amax(1)
    prompt = batch.attention_mask[:, : batch.prompts.shape[1]].sum(1)
    lengths: list[int] = torch.where(last > 0, prompt + last, 0).tolist()
    return lengths


@dataclass(frozen=True, slots=True)
class Layout:
    """Input of the model for some rows, of which N tokens are asked for. Tensors are on the CPU."""

    input_ids: torch.Tensor
    """int64 [b, T], padded on the right, behind everything that is asked for: rows need no mask but the causal one."""
    before: torch.Tensor
    """int64 [N]: place, in the flattened input, of the id before each token."""
    targets: torch.Tensor
    """int64 [N]: the tokens."""
    mask: torch.Tensor
    """bool [b, R]: where they belong, in the order of `targets`."""

    @classmethod
    def of(cls, batch: RolloutBatch, rows: list[int], mask: torch.Tensor) -> Layout:
        """Lays out `rows` in their order; each has a True in `mask`, and at least one id in its prompt."""
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
        return cls(inputs, torch.cat(before), torch.cat(targets), mask[rows])

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Spreads [N] over [b, R], with 0 at tokens that were not asked for."""
        target = torch.zeros(self.mask.shape, dtype=values.dtype, device=values.device)
        return target.masked_scatter(self.mask.to(values.device), values)


IDLE = Layout(
    input_ids=torch.zeros(1, 2, dtype=torch.int64),
    before=torch.zeros(1, dtype=torch.int64),
    targets=torch.zeros(1, dtype=torch.int64),
    mask=torch.ones(1, 1, dtype=torch.bool),
)
"""One token of no row, for a process that has nothing to compute while others do."""


@dataclass(frozen=True, slots=True)
class TokenValues:
    """float32 [b, R] for b rows of a batch; 0 at tokens that were not asked for."""

    logprobs: torch.Tensor
    entropy: torch.Tensor
    values: torch.Tensor | None
    """Values of the value head before each token; None without one."""


class Policy:
    """`Policy.load(model_dir, settings)`; then `compute(batch, rows, mask)`."""

    def __init__(
        self,
        trained: TokenModel,
        settings: PolicySettings,
        *,
        reference: TokenModel | None = None,
        peers: Peers = ALONE,
    ) -> None:
        self.model = trained.model
        """The model of transformers, with adapters in it if there are any."""
        self.settings = settings
        self.value_head = trained.value_head
        self._trained = trained
        self._computed = trained
        """The model that `compute` uses now: the trained one or the reference."""
        self._reference = reference
        self._peers = peers

    @classmethod
    def load(
        cls,
        model_dir: Path,
        settings: PolicySettings,
        *,
        value_head: bool = False,
        reference: bool = False,
        seed: int = 0,
        peers: Peers = ALONE,
        split: Split | None = None,
    ) -> Policy:
        """Loads a folder in the layout of the Hugging Face hub. `reference` keeps the first weights too: at no cost
        with adapters, as a second model without. With several `peers`, `split` spreads the weights that the first of
        them reads. Raises FairboxError for models that can't be trained here, and ConfigError for a device that torch
        does not see."""
        check_device("policy.device", settings.device)

        def loaded(adapters: bool, head: bool) -> TokenModel:
            return load_token_model(
                model_dir, settings, adapters=adapters, value_head=head, seed=seed, first=peers.rank == 0, split=split
            )

        trained = loaded(bool(settings.lora_rank), value_head)
        second = loaded(False, False).requires_grad_(False) if reference and not settings.lora_rank else None
        return cls(trained, settings, reference=second, peers=peers)

    @property
    def module(self) -> TokenModel:
        """The model that is trained, with its value head."""
        return self._trained

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Trained parameters by name, each once; this process's parts of them if the model is split."""
        put_together(self._trained)
        found = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        if self.value_head is not None:
            found |= {f"value_head.{name}": value for name, value in self.value_head.named_parameters()}
        return found

    def state(self) -> dict[str, torch.Tensor]:
        """The weights as an engine takes them: those of a plain model, with what was learned."""
        return plain_state(self.model)

    def write(self, folder: Path, *, for_engine: bool = False) -> None:
        """Implements `WritableModel`. Every peer calls it; the first puts the model together on its CPU to write it."""
        dtype = torch.bfloat16 if for_engine and self.settings.dtype == "bfloat16" else None
        put_together(self._trained)
        tied = tied_names(self.model)
        whole = ((name, self._peers.whole(value)) for name, value in plain_items(self.model) if name not in tied)
        tensors = {name: value.to("cpu", dtype) for name, value in whole if value is not None}
        if self._peers.rank == 0:
            write_model(self.model.config, tensors, folder)

    def trained_state(self) -> dict[str, torch.Tensor]:
        """The parameters that are trained, on the CPU, for a checkpoint; empty but at the first peer."""
        whole = ((name, self._peers.whole(value.detach())) for name, value in self.named_parameters().items())
        return {name: value.cpu().clone() for name, value in whole if value is not None}

    @torch.no_grad()
    def load_trained_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Loads what `trained_state` gave; every peer gets all of it. Raises FairboxError for another model's."""
        mine = self.named_parameters()
        if {name: value.shape for name, value in mine.items()} != {name: value.shape for name, value in state.items()}:
            raise FairboxError("the checkpoint's parameters have other names or shapes than the model's")
        for name, value in state.items():
            mine[name].copy_(part_of(value, mine[name]))

    @contextlib.contextmanager
    def as_reference(self) -> Iterator[None]:
        """Context in which `compute` uses the weights from before training."""
        if self._reference is None:
            with without_adapters(self.model):
                yield
            return
        self._computed = self._reference
        try:
            yield
        finally:
            self._computed = self._trained

    def compute(
        self,
        batch: RolloutBatch,
        rows: list[int],
        mask: torch.Tensor,
        *,
        temperature: float,
        entropy_gradient: bool = False,
    ) -> TokenValues:
        """Computes `rows` of the batch, at the True of `mask` (bool [B, R]), in one forward pass.

        Gradients flow if they are enabled.
        """
        layout = Layout.of(batch, rows, mask)
        logprobs, entropy, values = self._forward(layout, temperature=temperature, entropy_gradient=entropy_gradient)
        return TokenValues(
            layout.spread(logprobs), layout.spread(entropy), None if values is None else layout.spread(values)
        )

    def _forward(
        self, layout: Layout, *, temperature: float, entropy_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """(logprobs, entropies, values), each [N]."""
        device = self.settings.device
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=self.settings.dtype == "bfloat16"):
            found: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] = self._computed(
                layout.input_ids.to(device),
                layout.before.to(device),
                layout.targets.to(device),
                temperature=temperature,
                entropy_gradient=entropy_gradient,
            )
        return found

    def idle(self) -> torch.Tensor:
        """0, with a gradient of 0 for everything that `compute` gives one: a peer without rows takes part in what the
        others compute by it."""
        found = self._forward(IDLE, temperature=1.0, entropy_gradient=False)
        return sum((0.0 * values.sum() for values in (found[0], found[2]) if values is not None), torch.zeros(()))


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
    """Loads onto the settings' device. With `split` only the `first` process reads the weights. Raises FairboxError."""

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
    return TokenModel(model, head, exact_head=settings.head_dtype == "float32")


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
    """Raises FairboxError if a model does more behind its last hidden states than project them."""
    head, ids = model.get_output_embeddings(), torch.arange(4).unsqueeze(0)
    if head is None or not hasattr(model, "base_model"):
        raise FairboxError(f"{where}: has no output embeddings, so it is no causal language model")
    own = model(input_ids=ids, use_cache=False).logits.float()
    ours = head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state).float()
    if not torch.allclose(own, ours, rtol=_HEAD_TOLERANCE, atol=_HEAD_TOLERANCE):
        raise FairboxError(f"{where}: scales or caps its logits behind the head, which training does not know")
