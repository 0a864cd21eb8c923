"""The rows of a step that pass a filter. Pure but for the rows that a filter reads.

A row is judged once, so that a growing file costs what grew. `advance()` judges a few rows at a time; whoever calls it
decides how often, and may stop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollout.viewer.facts import RowFacts
from rollout.viewer.filters import Filter

__all__ = ["RowView"]

READ_AT_ONCE_BYTES = 1 << 20
"""Of rows that a filter may have to read in one `advance()`."""
JUDGED_AT_ONCE = 5000
"""Rows that are judged by their facts in one `advance()`; some 10 ms."""


class RowView:
    """`extend()` it with rows, `advance()` until `pending` is 0; `passed` are those that pass."""

    def __init__(self, read: Callable[[RowFacts], Mapping[str, Any] | str], filter: Filter | None = None) -> None:
        self._read = read
        self.filter = filter
        self.rows: list[RowFacts] = []
        self.passed: list[RowFacts] = []
        self._judged = 0

    @property
    def pending(self) -> int:
        """Rows that are not judged yet."""
        return len(self.rows) - self._judged

    def extend(self, rows: Sequence[RowFacts]) -> None:
        """Adds rows behind those that are there."""
        self.rows.extend(rows)

    def advance(self) -> None:
        """Judges some rows."""
        budget = READ_AT_ONCE_BYTES
        for row in self.rows[self._judged : self._judged + JUDGED_AT_ONCE]:
            if self.filter is None or self.filter.matches(row, lambda row=row: self._record(row)):  # type: ignore[misc]
                self.passed.append(row)
            self._judged += 1
            budget -= row.size if self.filter is not None and self.filter.reads else 0
            if budget <= 0:
                return

    def _record(self, row: RowFacts) -> Mapping[str, Any] | None:
        record = self._read(row)
        return record if isinstance(record, Mapping) else None
