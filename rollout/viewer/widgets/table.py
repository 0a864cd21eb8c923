"""A table of any number of rows: only the lines that are seen are drawn, so a million rows cost what fifty do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rollout.viewer.columns import Column, visible, window
from rollout.viewer.widgets.styles import CURSOR, HEADER, HEADER_CURRENT

__all__ = ["Table"]

T = TypeVar("T")


class Table(ScrollView, Generic[T], can_focus=True):
    """`show(columns, rows)`; the cursor is a row and a column. `Opened` says that Enter was pressed on a row, `Moved`
    that the cursor is on another one, `HeaderClicked` that a column's title was clicked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False),
        Binding("home,g", "first", "First row", show=False),
        Binding("end,G", "last", "Last row", show=False),
        Binding("left,h", "column(-1)", "Column left", show=False),
        Binding("right,l", "column(1)", "Column right", show=False),
        Binding("enter", "open", "Open", show=False),
    ]

    class Opened(Message):
        """Enter, or a click on the cursor's row."""

        def __init__(self, table: Table[Any]) -> None:
            super().__init__()
            self.table = table

        @property
        def control(self) -> Table[Any]:
            return self.table

    class Moved(Message):
        """The cursor is on another row or column."""

    class HeaderClicked(Message):
        """The cursor's column is the one that was clicked."""

    def __init__(self, *, style_of: Callable[[T], Style | None] | None = None, id: str | None = None) -> None:
        super().__init__(id=id)
        self.columns: Sequence[Column[T]] = ()
        self.rows: Sequence[T] = ()
        self.cursor = 0
        self.column = 0
        self.mark: tuple[str, bool] | None = None
        """The field by which rows are sorted, and whether descending."""
        self._style_of = style_of

    @property
    def current(self) -> T | None:
        """The cursor's row."""
        return self.rows[self.cursor] if self.rows else None

    def show(self, columns: Sequence[Column[T]], rows: Sequence[T], *, cursor: int | None = None) -> None:
        """Shows other rows. The cursor stays at its place unless another one is given."""
        self.columns, self.rows = columns, rows
        self.column = max(0, min(self.column, len(columns) - 1))
        self.virtual_size = Size(self.scrollable_content_region.width, len(rows) + 1)
        self._put(self.cursor if cursor is None else cursor)
        self.refresh()

    def put_cursor(self, row: int) -> None:
        """Moves the cursor, and scrolls as far as is needed."""
        if self._put(row):
            self.post_message(self.Moved())

    def action_move(self, rows: int) -> None:
        self.put_cursor(self.cursor + rows)

    def action_page(self, pages: int) -> None:
        self.put_cursor(self.cursor + pages * max(1, self.scrollable_content_region.height - 2))

    def action_first(self) -> None:
        self.put_cursor(0)

    def action_last(self) -> None:
        self.put_cursor(len(self.rows) - 1)

    def action_column(self, columns: int) -> None:
        self.column = max(0, min(self.column + columns, len(self.columns) - 1))
        self.refresh()
        self.post_message(self.Moved())

    def action_open(self) -> None:
        if self.rows:
            self.post_message(self.Opened(self))

    def on_resize(self, event: events.Resize) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self.rows) + 1)
        self._put(self.cursor)

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            self._click_header(event.x)
            return
        row = self.scroll_offset.y + event.y - 1
        if row == self.cursor:
            self.action_open()
        elif row < len(self.rows):
            self.put_cursor(row)

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        shown = window(self.columns, width, self.column)
        if y == 0:
            return self._line([(self._title(p), size, self._title_style(p), p) for p, size in shown], width, None)
        position = self.scroll_offset.y + y - 1
        if position >= len(self.rows):
            return Strip.blank(width, self.rich_style)
        row = self.rows[position]
        style = CURSOR if position == self.cursor else self._style_of(row) if self._style_of else None
        cells = [(visible(self.columns[p].text(row)), size, style, p) for p, size in shown]
        return self._line(cells, width, style)

    def _line(self, cells: list[tuple[str, int, Style | None, int]], width: int, style: Style | None) -> Strip:
        segments = []
        for text, size, cell_style, position in cells:
            segments.append(Segment(_fit(text, size, right=self.columns[position].right), cell_style))
            segments.append(Segment(" ", style))
        strip = Strip(segments).adjust_cell_length(width, style)
        return strip.apply_style(self.rich_style) if style is None else Strip(strip).apply_style(self.rich_style)

    def _title(self, position: int) -> str:
        column = self.columns[position]
        sorted_by = self.mark is not None and self.mark[0] == column.name
        return column.title + (("↓" if self.mark and self.mark[1] else "↑") if sorted_by else "")

    def _title_style(self, position: int) -> Style:
        return HEADER_CURRENT if position == self.column else HEADER

    def _click_header(self, x: int) -> None:
        at = 0
        for position, size in window(self.columns, self.scrollable_content_region.width, self.column):
            at += size + 1
            if x < at:
                self.column = position
                self.refresh()
                self.post_message(self.HeaderClicked())
                return

    def _put(self, row: int) -> bool:
        before = self.cursor
        self.cursor = max(0, min(row, len(self.rows) - 1))
        top, height = round(self.scroll_offset.y), max(1, self.scrollable_content_region.height - 1)
        if self.cursor < top or self.cursor >= top + height:
            target = self.cursor if self.cursor < top else self.cursor - height + 1
            self.scroll_to(y=target, animate=False, force=True, immediate=True)
        self.refresh()
        return before != self.cursor


def _fit(text: str, size: int, *, right: bool) -> str:
    """Exactly `size` cells; what is cut off ends with a mark."""
    cut = set_cell_size(text, size)
    if cut.rstrip() != text.rstrip() and size > 1:
        return set_cell_size(text, size - 1) + "…"
    return " " * (size - cell_len(text)) + text if right else cut
