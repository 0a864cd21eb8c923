"""Columns of tables: what each shows, and how numbers and texts are written in it. Pure.

Texts of a dump come from a model and from programs, so what reaches the terminal goes through `visible()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rollout.viewer.facts import FIELDS, Field, FieldKind, RowFacts, Value, field_named

__all__ = ["DIM", "PROBLEM", "Column", "number_text", "row_column", "row_columns", "signed_text", "visible"]

T = TypeVar("T")

DIM = "#8a94a2"
PROBLEM = "bold #ff8f7a"

_LOOKED_AT = 1000
"""Rows that decide which columns there are."""
_CONTROL = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}
_CONTROL |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)  # C1, among them a second way to begin an escape sequence
_CONTROL |= dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)  # lone surrogates, which no terminal can be sent
_CONTROL |= dict.fromkeys((0x2028, 0x2029), 0x21B5)  # line separators
_CONTROL |= dict.fromkeys((*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF), 0xFFFD)
"""Characters that a terminal would obey, or that would hide or reorder others; each becomes one that is seen."""


def visible(text: str) -> str:
    """The text on one line with nothing in it that a terminal obeys; of the same length, character by character."""
    return text if text.isascii() and text.isprintable() else text.translate(_CONTROL)


def number_text(value: float | None, digits: int = 3) -> str:
    """A number for a column; `-` for none."""
    if value is None:
        return "-"
    if isinstance(value, int) or (value == int(value) if abs(value) < 1e15 else False):
        return str(int(value))
    return f"{value:.{digits}f}" if 1e-3 <= abs(value) < 1e7 else f"{value:.2e}"


def signed_text(value: float | None) -> str:
    """A change: with its sign; `=` for none at all."""
    if value is None:
        return "-"
    return "=" if value == 0 else f"{'+' if value > 0 else ''}{number_text(value)}"


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column of a table of `T`: a value to sort by, and how it is written."""

    title: str
    width: int
    """Cells, its gap left out."""
    get: Callable[[T], Value]
    write: Callable[[float | None], str] = number_text
    """Numbers, and None; texts are shown as they are."""
    name: str = ""
    """The field of a row that it shows, if it is one."""

    def text(self, row: T) -> str:
        """The text of a row's cell."""
        value = self.get(row)
        return self.write(value) if isinstance(value, int | float | None) else visible(str(value))


def row_column(field: Field) -> Column[RowFacts]:
    """The column of a field."""

    def ended(row: RowFacts) -> Value:
        return f"broken: {row.problem}" if row.problem else field.get(row)

    get = ended if field.name == "stop_reason" else field.get
    digits = 2 if field.name.endswith("_s") else 3
    return Column(field.title, field.width, get, lambda value: number_text(value, digits), field.name)


def row_columns(rows: Sequence[RowFacts], extras: Iterable[str] = ()) -> list[Column[RowFacts]]:
    """Columns that have a value in the first rows, and one for each of the extras."""
    known = [row_column(field) for field in FIELDS.values() if field.title]
    shown = [column for column in known if column.name in ("line", "score") or _filled(column, rows)]
    for name in extras:
        field = field_named(name, (name,))
        if field is not None and field.kind is FieldKind.EXTRA:  # an extra can't take the place of a field
            shown.append(Column(name, max(7, min(20, len(name))), field.get, name=name))
    return shown


def _filled(column: Column[RowFacts], rows: Sequence[RowFacts]) -> bool:
    return any(column.text(row) != "-" for row in rows[:_LOOKED_AT])
