"""Keys and values of the running rows, preallocated, in the form that transformers' models take.

Row r of every layer holds the context of request r from column 0 on, so rows of different lengths need no padding on
the left and nothing shifts when a row joins or leaves. The owner says before each forward pass where it writes
(`prefill_at` or `decode_at`) and hands the model the matching positions and mask.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

__all__ = ["RowCache"]

_GROW = 256
"""Columns are added in steps of this, so that memory follows the longest context and copies are rare."""


class _Cursor:
    """Where the layers write in this forward pass."""

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
    """Storage of shape (layers, 2, rows, heads, columns, head_dim), float32."""

    def __init__(self, *, layers: int, rows: int, heads: int, head_dim: int, max_columns: int) -> None:
        self._shape = (layers, 2, rows, heads, head_dim)
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

    def decode_at(self, positions: torch.Tensor) -> None:
        """The next forward pass computes one column of each of the rows 0 to `len(positions) - 1`."""
        stop = int(positions.max()) + 1
        self._reserve(stop)
        self._cursor.positions, self._cursor.stop = positions, stop
        self._cursor.indices = torch.arange(len(positions))

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
        return torch.zeros((layers, two, rows, heads, columns, head_dim), dtype=torch.float32)

    def _view(self) -> Any:
        return Cache(layers=[_RowLayer(layer[0], layer[1], self._cursor) for layer in self._storage])
