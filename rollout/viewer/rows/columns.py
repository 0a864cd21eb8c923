"""Columns of tables: what each shows, how its numbers and texts are written, and how rows are sorted by it. Pure.

Texts of a dump come from a model and from programs, so what reaches the terminal goes through `visible()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")
Value = float | str | None | tuple[str, ...]
Kind = Literal["number", "text", "flag", "read", "extra"]
"""Kinds of fields for filters: a number is compared by size; a text whole, and of several texts one must match; a
flag is true or false; a `read` one is no fact, so the row is read for it; an extra is a number, a text or a flag, as
the dump has it."""

DIM = "#8a94a2"
PROBLEM = "bold #ff8f7a"

_CONTROL = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}
_CONTROL |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)  # C1, among them a second way to begin an escape sequence
_CONTROL |= dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)  # lone surrogates, which no terminal can be sent
_CONTROL |= dict.fromkeys((0x2028, 0x2029), 0x21B5)  # line separators
_CONTROL |= dict.fromkeys((*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF), 0xFFFD)
"""Characters that a terminal would obey, or that would hide or reorder others; each becomes one that is seen."""


def visible(text: str) -> str:
    """The text on one line with nothing in it that a terminal obeys; of the same length, character by character."""
    return text if text.isascii() and text.isprintable() else text.translate(_CONTROL)


def number_text(value: float | None) -> str:
    """A number for a column; `-` for none."""
    if value is None:
        return "-"
    if isinstance(value, int) or (value == int(value) if abs(value) < 1e15 else False):
        return str(int(value))
    return f"{value:.3f}" if 1e-3 <= abs(value) < 1e7 else f"{value:.2e}"


def signed_text(value: float | None) -> str:
    """A change: with its sign; `=` for none at all."""
    if value is None:
        return "-"
    return "=" if value == 0 else f"{'+' if value > 0 else ''}{number_text(value)}"


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One value of a `T`: a column of a table, and if it has a name, a field of filters."""

    title: str
    """Empty for a field that has no column."""
    width: int
    """Cells, its gap left out."""
    get: Callable[[T], Value]
    """None if it has no such value."""
    write: Callable[[float | None], str] = number_text
    """Writes numbers, and None; texts are shown as they are."""
    name: str = ""
    kind: Kind = "number"
    help: str = ""

    def text(self, row: T) -> str:
        """The text of a row's cell."""
        value = self.get(row)
        return self.write(value) if isinstance(value, int | float | None) else visible(str(value))


def sorted_by(rows: Sequence[T], get: Callable[[T], Value], *, descending: bool) -> list[T]:
    """Rows in the order of a value: numbers by size, before texts. Rows without a value, and NaN, come last either way;
    rows that are alike keep their order."""

    def key(row: T) -> tuple[bool, float, str]:
        value = get(row)
        return (False, value, "") if isinstance(value, int | float) else (True, 0.0, str(value))

    def known(row: T) -> bool:
        value = get(row)
        return value is not None and not (isinstance(value, float) and math.isnan(value))

    having = [row for row in rows if known(row)]
    return sorted(having, key=key, reverse=descending) + [row for row in rows if not known(row)]
