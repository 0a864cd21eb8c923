"""Columns of tables: what each shows, and which of them fit. Pure.

Texts of a dump come from a model and from programs, so what reaches the terminal goes through `visible()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rollout.viewer.facts import RowFacts
from rollout.viewer.fields import FIELDS, field_named

__all__ = ["ROW_COLUMNS", "Column", "number_text", "row_columns", "signed_text", "visible", "window"]

T = TypeVar("T")

_LOOKED_AT = 1000
"""Rows that decide which columns there are."""
_CONTROL = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}
_CONTROL |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)  # C1, among them a second way to begin an escape sequence
_CONTROL |= dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)  # lone surrogates, which no terminal can be sent
_CONTROL |= dict.fromkeys((0x2028, 0x2029), 0x21B5)  # line separators
_CONTROL |= dict.fromkeys((*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF), 0xFFFD)
"""Characters that a terminal would obey, or that would hide or reorder others; each becomes one that is seen."""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column of a table of `T`."""

    name: str
    """The field that it sorts by."""
    title: str
    width: int
    """Cells, its gap left out."""
    text: Callable[[T], str]
    right: bool = True
    """Whether it is aligned to the right, as numbers are."""
    grows: bool = False
    """Whether it takes what is left of the line."""


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


def _number(name: str, title: str, width: int) -> Column[RowFacts]:
    get = FIELDS[name].get

    def text(row: RowFacts) -> str:
        value = get(row)
        return number_text(value if isinstance(value, int | float) else None)

    return Column(name, title, width, text)


def _seconds(name: str, title: str, width: int) -> Column[RowFacts]:
    get = FIELDS[name].get

    def text(row: RowFacts) -> str:
        value = get(row)
        return f"{value:.2f}" if isinstance(value, int | float) else "-"

    return Column(name, title, width, text)


def _text(name: str, title: str, width: int) -> Column[RowFacts]:
    get = FIELDS[name].get
    return Column(name, title, width, lambda row: str(get(row) or "-"), right=False)


def _ended(row: RowFacts) -> str:
    if row.problem:
        return f"broken: {row.problem}"
    return row.stop_reason or "-"


ROW_COLUMNS: tuple[Column[RowFacts], ...] = (
    _number("line", "line", 6),
    _number("score", "score", 7),
    Column("stop_reason", "ended by", 15, _ended, right=False),
    _text("cause", "cause", 6),
    _number("turns", "turns", 5),
    _number("tool_calls", "calls", 5),
    _number("tool_errors", "failed", 6),
    _number("response_tokens", "tokens", 7),
    _seconds("total_s", "seconds", 8),
    _text("uid", "uid", 16),
    _number("logprob", "logprob", 7),
    _number("sampled_tokens", "sampled", 7),
    _number("prompt_tokens", "prompt", 7),
    _number("chars", "chars", 7),
    _seconds("engine_s", "engine s", 8),
    _seconds("tool_s", "tool s", 7),
    _seconds("wait_s", "wait s", 7),
    _number("attempts", "tries", 5),
    _number("index", "index", 6),
    _text("request_id", "request id", 32),
    _text("data_source", "source", 14),
)


def row_columns(rows: Sequence[RowFacts], extras: Iterable[str] = ()) -> list[Column[RowFacts]]:
    """Columns that have a value in the first rows, and one for each of the extras."""
    shown = [column for column in ROW_COLUMNS if column.name in ("line", "score") or _filled(column, rows)]
    for name in extras:
        field = field_named(name, (name,))
        if name in FIELDS or field is None:
            continue  # an extra can't take the place of a field

        def text(row: RowFacts, name: str = name) -> str:
            value = row.extras.get(name)
            return value if isinstance(value, str) else number_text(value)

        shown.append(Column(name, name, max(7, min(20, len(name))), text))
    return shown


def _filled(column: Column[RowFacts], rows: Sequence[RowFacts]) -> bool:
    return any(column.text(row) != "-" for row in rows[:_LOOKED_AT])


def window(columns: Sequence[Column[T]], width: int, current: int) -> list[tuple[int, int]]:
    """(position, width) of the columns to show in `width` cells: the first one always, then those up to the current
    one that still fit beside it, then what fits behind it. The last growing one, or the last one, takes the rest."""
    if not columns:
        return []
    start = 1
    while start < current and _total(columns, [0, *range(start, current + 1)]) > width:
        start += 1
    chosen = [0]
    for position in range(start, len(columns)):
        if _total(columns, [*chosen, position]) > width and position > current:
            break
        chosen.append(position)
    left = max(0, width - _total(columns, chosen))
    growing = next((p for p in chosen if columns[p].grows), None)
    return [(p, columns[p].width + (left if p == growing else 0)) for p in chosen]


def _total(columns: Sequence[Column[T]], chosen: Sequence[int]) -> int:
    return sum(columns[position].width + 1 for position in chosen)
