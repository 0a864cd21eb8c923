"""The rows of a step as they are shown: those that pass a filter, sorted. Pure but for the rows that a filter reads.

A row is judged once, so that a growing file costs what grew. `advance()` judges a few rows at a time; whoever calls it
decides how often, and may stop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.viewer.facts import RowFacts
from rollout.viewer.fields import Field, sorted_rows
from rollout.viewer.filters import Filter

__all__ = ["RowView", "Sorting"]

READ_AT_ONCE_BYTES = 1 << 20
"""Of rows that a filter may have to read in one `advance()`."""
JUDGED_AT_ONCE = 5000
"""Rows that are judged by their facts in one `advance()`; some 10 ms."""


@dataclass(frozen=True, slots=True)
class Sorting:
    """By which field, and in which direction."""

    field: Field
    descending: bool = True


class RowView:
    """`extend()` it with rows, `advance()` until `pending` is 0, then take `ordered()`."""

    def __init__(
        self,
        read: Callable[[RowFacts], Mapping[str, Any] | str],
        *,
        filter: Filter | None = None,
    ) -> None:
        self._read = read
        self.filter = filter
        self._rows: list[RowFacts] = []
        self._judged = 0
        self._passed: list[RowFacts] = []

    @property
    def pending(self) -> int:
        """Rows that are not judged yet."""
        return len(self._rows) - self._judged

    @property
    def rows(self) -> Sequence[RowFacts]:
        """All of them, in the file's order."""
        return self._rows

    def extend(self, rows: Sequence[RowFacts]) -> None:
        """Adds rows behind those that are there."""
        self._rows.extend(rows)

    def drop_last(self) -> None:
        """Takes the last row away, which was of a line without an end."""
        row = self._rows.pop()
        self._judged = min(self._judged, len(self._rows))
        if self._passed and self._passed[-1] is row:
            self._passed.pop()

    def advance(self) -> None:
        """Judges some rows."""
        if self.filter is None:
            self._passed.extend(self._rows[self._judged :])
            self._judged = len(self._rows)
            return
        until, budget = min(len(self._rows), self._judged + JUDGED_AT_ONCE), READ_AT_ONCE_BYTES
        while self._judged < until and budget > 0:
            row = self._rows[self._judged]
            if self.filter.matches(row, lambda row=row: self._record(row)):  # type: ignore[misc]
                self._passed.append(row)
            self._judged += 1
            budget -= row.size if self.filter.reads else 0

    def ordered(self, sorting: Sorting | None = None) -> list[RowFacts]:
        """The rows that passed so far; without a sorting in the file's order."""
        if sorting is None:
            return list(self._passed)
        return sorted_rows(self._passed, sorting.field, descending=sorting.descending)

    def _record(self, row: RowFacts) -> Mapping[str, Any] | None:
        record = self._read(row)
        return record if isinstance(record, Mapping) else None
