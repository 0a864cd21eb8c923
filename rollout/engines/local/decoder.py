"""A transformers causal language model that decodes many rows at once, in float32 on one device.

Invariants: a forward pass sees explicit positions and an explicit mask, so a row's logits do not depend on its
neighbours beyond the rounding of float32; keys and values are computed once per id of a trajectory. It knows rows and
ids, not requests; it belongs to one thread.

`PrefixStore`: the examples of a prompt are shared by all trajectories, and each turn of a trajectory extends the one
before, so most of a context has been computed already. What is kept is opaque here; entries are found by their ids
alone.

`RowCache`: row r of every layer holds the context of request r from column 0 on, so rows of different lengths need no
padding on the left and nothing shifts when a row joins or leaves. The owner says before each forward pass where it
writes (`prefill_at` or `decode_at`) and hands the model the matching positions and mask.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from cachetools import LRUCache
from transformers import AutoConfig, AutoModelForCausalLM, Cache
from transformers.cache_utils import CacheLayerMixin

from fairbox.errors import FairboxError
from rollout.engines.weights import DiskWeights, StateWeights

_GROW = 256
"""Columns are added in steps of this, so that memory follows the longest context and copies are rare."""


class _Cursor:
    """Rows and columns that the layers write in this forward pass."""

    row = 0
    start = 0
    stop = 0
    """Columns that attention reads: 0 to below this."""
    positions: torch.Tensor | None = None
    """int64 (rows,): the column of each row when decoding; None when prefilling `row` from `start`."""
    indices: torch.Tensor | None = None


class _RowLayer(CacheLayerMixin):  # type: ignore[misc]
    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, cursor: _Cursor) -> None:
        super().__init__()
        self.keys, self.values, self.cursor = keys, values, cursor
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise AssertionError("rows are allocated at construction")

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        at = self.cursor
        if at.positions is None:
            rows = slice(at.row, at.row + 1)
            self.keys[rows, :, at.start : at.stop] = key
            self.values[rows, :, at.start : at.stop] = value
        else:
            rows = slice(0, len(at.positions))
            self.keys[at.indices, :, at.positions] = key[:, :, 0]
            self.values[at.indices, :, at.positions] = value[:, :, 0]
        return self.keys[rows, :, : at.stop], self.values[rows, :, : at.stop]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cursor.stop, 0

    def get_seq_length(self) -> int:
        return self.cursor.start

    def get_max_length(self) -> int:
        return -1


class RowCache:
    """Storage of shape (layers, 2, rows, heads, columns, head_dim), float32, on `device`."""

    def __init__(
        self, *, layers: int, rows: int, heads: int, head_dim: int, max_columns: int, device: torch.device
    ) -> None:
        self._shape = (layers, 2, rows, heads, head_dim)
        self._device = device
        self._max_columns = max_columns
        self._cursor = _Cursor()
        self._storage = self._allocate(min(_GROW, max_columns))
        self.cache = self._view()

    @property
    def columns(self) -> int:
        """Columns allocated."""
        return self._storage.shape[4]

    def prefill_at(self, row: int, start: int, stop: int) -> None:
        """The next forward pass computes columns `start` to `stop` of one row."""
        self._reserve(stop)
        self._cursor.row, self._cursor.start, self._cursor.stop, self._cursor.positions = row, start, stop, None

    def decode_at(self, positions: torch.Tensor, stop: int) -> None:
        """The next forward pass computes one column, below `stop`, of each of the rows 0 to `len(positions) - 1`."""
        self._reserve(stop)
        self._cursor.positions, self._cursor.stop = positions, stop
        self._cursor.indices = torch.arange(len(positions), device=self._device)

    def move(self, source: int, target: int, columns: int) -> None:
        """Copies the first `columns` of one row to another."""
        self._storage[:, :, target, :, :columns] = self._storage[:, :, source, :, :columns]

    def save(self, row: int, columns: int) -> torch.Tensor:
        """A copy of the first `columns` of a row: (layers, 2, heads, columns, head_dim)."""
        return self._storage[:, :, row, :, :columns].clone()

    def restore(self, row: int, saved: torch.Tensor, columns: int) -> None:
        """Writes the first `columns` of what `save` returned into a row."""
        self._reserve(columns)
        self._storage[:, :, row, :, :columns] = saved[:, :, :, :columns]

    def _reserve(self, columns: int) -> None:
        if columns <= self.columns:
            return
        assert columns <= self._max_columns
        grown = self._allocate(min(self._max_columns, -(-columns // _GROW) * _GROW))
        grown[:, :, :, :, : self.columns] = self._storage
        self._storage = grown
        self.cache = self._view()

    def _allocate(self, columns: int) -> torch.Tensor:
        layers, two, rows, heads, head_dim = self._shape
        return torch.zeros((layers, two, rows, heads, columns, head_dim), dtype=torch.float32, device=self._device)

    def _view(self) -> Any:
        return Cache(layers=[_RowLayer(layer[0], layer[1], self._cursor) for layer in self._storage])


class PrefixStore:
    """At most `max_bytes` of what rows have computed; the one unused for longest goes first."""

    def __init__(self, max_bytes: int) -> None:
        self.kept: LRUCache[bytes, torch.Tensor] = LRUCache(max_bytes, getsizeof=lambda saved: saved.nbytes)
        """By the ids, as `_packed` writes them."""

    def find(self, ids: tuple[int, ...]) -> tuple[int, torch.Tensor] | None:
        """(length, saved) of the entry that shares the longest prefix with `ids`, the last id left out.

        The last id is left out because its logits are wanted, so it has to be computed.
        """
        wanted = _packed(ids[:-1])
        best, length = None, 0
        for entry in self.kept:
            shared = _common(entry, wanted)
            if shared > length:
                best, length = entry, shared
        return None if best is None else (length, self.kept[best])

    def add(self, ids: tuple[int, ...], saved: torch.Tensor) -> None:
        """Keeps a context. An entry that is a prefix of it is replaced; one that extends it makes this call a no-op."""
        new = _packed(ids)
        if saved.nbytes > self.kept.maxsize:
            return
        for entry in list(self.kept):
            if entry.startswith(new):
                return
            if new.startswith(entry):
                del self.kept[entry]
        self.kept[new] = saved


_ID_BYTES = 8


def _packed(ids: Sequence[int]) -> bytes:
    return array("q", ids).tobytes()


def _common(left: bytes, right: bytes) -> int:
    """Number of ids of the common prefix, by bisection over slices, which compare at C speed."""
    low, high = 0, min(len(left), len(right)) // _ID_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * _ID_BYTES : middle * _ID_BYTES] == right[low * _ID_BYTES : middle * _ID_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


_LOADING = threading.Lock()
_MASKED = torch.finfo(torch.float32).min


class Decoder:
    """`begin` a context in a row, `step` all rows by one id each, `end` a row. Logits stay on `device`."""

    def __init__(
        self, model_dir: Path, *, device: str, max_rows: int, max_model_tokens: int | None, prefix_bytes: int
    ) -> None:
        self.device = torch.device(device)
        self.model = load_model(model_dir).to(self.device)
        config = self.model.config
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise FairboxError(
                f"{model_dir}: has layers of kind {', '.join(sorted(kinds))}; this engine runs full attention only"
            )
        longest = int(config.max_position_embeddings)
        self.max_model_tokens = min(longest, max_model_tokens or longest)
        self.vocab_size = int(config.vocab_size)
        self._rows = RowCache(
            layers=config.num_hidden_layers,
            rows=max_rows,
            heads=config.num_key_value_heads or config.num_attention_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            max_columns=self.max_model_tokens,
            device=self.device,
        )
        self._prefixes = PrefixStore(prefix_bytes)

    @torch.inference_mode()
    def begin(self, row: int, ids: tuple[int, ...], running: Sequence[Sequence[int]]) -> tuple[torch.Tensor, int]:
        """Computes a context in `row`: (logits of its last position (vocabulary,), ids that were not computed again).

        `running` holds the contexts of the rows 0 to `row - 1` whose keys and values may be copied.
        """
        cached = self._reuse(row, ids, running)
        self._rows.prefill_at(row, cached, len(ids))
        columns = torch.arange(len(ids), device=self.device)
        positions = columns[cached:]
        logits = self._forward([ids[cached:]], positions[None, :], _causal(columns, positions)[None, None])
        return logits[0], cached

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Appends one id to each of the first `len(tokens)` rows: logits (rows, vocabulary)."""
        at, stop = torch.tensor(positions, device=self.device), max(positions) + 1
        self._rows.decode_at(at, stop)
        mask = _causal(torch.arange(stop, device=self.device), at)
        return self._forward([[token] for token in tokens], at[:, None], mask[:, None, None, :])

    @torch.inference_mode()
    def end(self, row: int, ids: Sequence[int]) -> None:
        """Keeps what `row` has computed, the contexts `ids`, for requests that extend it."""
        if ids:
            self._prefixes.add(tuple(ids), self._rows.save(row, len(ids)))

    @torch.inference_mode()
    def move(self, source: int, target: int, columns: int) -> None:
        """Copies one row to another."""
        self._rows.move(source, target, columns)

    def load(self, source: DiskWeights | StateWeights) -> None:
        """Replaces the weights and forgets what was computed with the old ones; no row may be in use.

        Raises FairboxError for weights of another shape, and whatever transformers raises for a folder without any.
        """
        if isinstance(source, StateWeights):
            state, where = source.tensors, "the state"
        else:
            state, where = load_model(source.path).state_dict(), str(source.path)
        self._check_shapes(state, where)
        self.model.load_state_dict(state)  # in place: the device never holds two models
        self._prefixes.kept.clear()

    def _check_shapes(self, state: Mapping[str, torch.Tensor], where: str) -> None:
        old, new = ({name: value.shape for name, value in each.items()} for each in (self.model.state_dict(), state))
        if old != new:
            raise FairboxError(f"{where}: its weights have other names or shapes than those that are loaded")

    def _reuse(self, row: int, ids: tuple[int, ...], running: Sequence[Sequence[int]]) -> int:
        source, shared, wanted = None, 0, _packed(ids[:-1])
        for other, context in enumerate(running):
            length = _common(_packed(context), wanted)
            if length > shared:
                source, shared = other, length
        found = self._prefixes.find(ids)
        if found is not None and found[0] > shared:
            self._rows.restore(row, found[1], found[0])
            return found[0]
        if source is not None:
            self._rows.move(source, row, shared)
        return shared

    def _forward(self, ids: Sequence[Sequence[int]], positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logits of the last position of each row: (rows, vocabulary)."""
        output = self.model(
            input_ids=torch.tensor(ids, device=self.device),
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._rows.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits


def _causal(columns: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Addends to the scores of `columns` for each position: float32 (positions, columns)."""
    mask = torch.zeros(len(positions), len(columns), device=columns.device)
    return mask.masked_fill(columns[None, :] > positions[:, None], _MASKED)


def load_model(model_dir: Path) -> Any:
    """The model of a folder, on the CPU in float32, in evaluation mode, without a progress bar.

    One at a time in a process: transformers keeps what it is loading in globals, and two loads at once leave weights
    out. Raises FairboxError when the folder lacks some, which transformers would make up.
    """
    from transformers.utils import logging

    with _LOADING:
        logging.disable_progress_bar()
        model, found = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, output_loading_info=True
        )
    if found["missing_keys"]:
        raise FairboxError(f"{model_dir}: has no weights for {', '.join(sorted(found['missing_keys'])[:5])}")
    return model.eval()


def blank_model(model_dir: Path) -> Any:
    """The model of a folder without its weights: for a `with torch.device("meta")`, where it costs no memory."""
    with _LOADING:
        config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
