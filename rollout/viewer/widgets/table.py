"""A table of rows of one kind: Textual's own, sorted by its columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from rollout.viewer.rows.columns import Column, sorted_by

T = TypeVar("T")

SHOWN_ROWS = 20_000
"""Rows that are drawn: the first ones, in the order of the table."""


class _Cell(Generic[T]):
    """A cell that is written when it is drawn. It tells no width, so that nothing is measured of rows out of sight."""

    __slots__ = ("_column", "_row", "_style")

    def __init__(self, column: Column[T], row: T, style: str) -> None:
        self._column = column
        self._row = row
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        justify: JustifyMethod = "left" if isinstance(self._column.get(self._row), str) else "right"
        text = self._column.text(self._row)
        yield Text(text, self._style, justify=justify, no_wrap=True, overflow="ellipsis", end="")


class Table(DataTable[Any], Generic[T]):
    """`show(columns, rows)`; the cursor is a row and a column, by which `s` sorts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", "First row", show=False),
        Binding("end", "scroll_bottom", "Last row", show=False),
        Binding("s", "sort", "Sort"),
    ]
    DEFAULT_CSS = "Table { height: 1fr; scrollbar-size: 1 1; }"

    def __init__(self, style_of: Callable[[T], str]) -> None:
        super().__init__(fixed_columns=1)
        self.items: list[T] = []
        """All rows in their order, those that are not drawn too."""
        self.mark: tuple[str, bool] | None = None
        """The title of the column by which rows are sorted, and whether descending."""
        self._shown_columns: Sequence[Column[T]] = ()
        self._unsorted: Sequence[T] = ()
        self._style_of = style_of

    @property
    def current(self) -> T | None:
        """The cursor's row."""
        return self.items[self.cursor_row] if self.items else None

    def show(self, columns: Sequence[Column[T]], rows: Sequence[T], *, top: bool = False, at: T | None = None) -> None:
        """Shows other rows. The cursor stays on its row, unless it is to be at the top, or at another one."""
        at = self.current if at is None and not top else at
        place, column = self.cursor_row, self.cursor_column
        before, self._unsorted = self.items[: self.row_count], rows
        by = next((each for each in columns if self.mark and each.title == self.mark[0]), None)
        self.items = list(rows) if by is None or self.mark is None else sorted_by(rows, by.get, descending=self.mark[1])
        titles = [each.title + (("↓" if self.mark and self.mark[1] else "↑") if each is by else "") for each in columns]
        shown = self.items[:SHOWN_ROWS]
        if [str(each.label) for each in self.ordered_columns] != titles or before != shown[: len(before)]:
            self.clear(columns=True)
            before = []
            for title, each in zip(titles, columns, strict=True):
                self.add_column(Text(title), width=max(each.width, len(each.title) + 1))
        self._shown_columns = columns
        for row in shown[len(before) :]:
            style = self._style_of(row)
            self.add_row(*(_Cell(column, row, style) for column in columns))
        if at is not None and at in self.items:
            place = self.items.index(at)
        self.move_cursor(row=0 if top and at is None else place, column=column)

    def action_sort(self) -> None:
        """By the cursor's column: descending, ascending, not."""
        if self._shown_columns:
            title = self._shown_columns[self.cursor_column].title
            down, up = (title, True), (title, False)
            self.mark = up if self.mark == down else None if self.mark == up else down
            self.show(self._shown_columns, self._unsorted, top=True)

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        self.move_cursor(column=event.column_index)
        self.action_sort()
