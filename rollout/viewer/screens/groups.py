"""Groups of a step: the statistics of each, and below them the rows of the current one with their advantages."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from rollout.viewer.columns import ROW_COLUMNS, Column, number_text, signed_text
from rollout.viewer.facts import RowFacts
from rollout.viewer.groups import Group, group_rows
from rollout.viewer.screens.base import ViewerScreen
from rollout.viewer.session import Place, Session
from rollout.viewer.steps import Step
from rollout.viewer.widgets.styles import DIM
from rollout.viewer.widgets.table import Table

__all__ = ["GroupsScreen"]

_COLUMNS: tuple[Column[Group], ...] = (
    Column("group", "group", 16, lambda group: group.label, right=False, grows=True),
    Column("rows", "rows", 5, lambda group: str(len(group.rows))),
    Column("masked", "unscored", 8, lambda group: str(group.masked)),
    Column("mean", "mean", 7, lambda group: number_text(group.mean)),
    Column("std", "std", 7, lambda group: number_text(group.std)),
    Column("best", "best", 7, lambda group: number_text(group.best.score if group.best else None)),
    Column("worst", "worst", 7, lambda group: number_text(group.worst.score if group.worst else None)),
    Column("tokens", "tokens", 7, lambda group: number_text(_mean_tokens(group), 0)),
)


def _key(group: Group, name: str) -> float | str | None:
    """What a column is sorted by."""
    best, worst = group.best, group.worst
    values: dict[str, float | str | None] = {
        "group": group.label,
        "rows": len(group.rows),
        "masked": group.masked,
        "mean": group.mean,
        "std": group.std,
        "best": best.score if best else None,
        "worst": worst.score if worst else None,
        "tokens": _mean_tokens(group),
    }
    return values[name]


def _mean_tokens(group: Group) -> float | None:
    known = [row.response_tokens for row in group.rows if row.response_tokens is not None]
    return sum(known) / len(known) if known else None


class GroupsScreen(ViewerScreen):
    """Groups of the rows that were shown when it was opened: a filter holds here too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort"),
        Binding("tab", "switch", "Groups/rows", priority=True),
        Binding("u", "back", "Close", show=False),
        Binding("n", "move(1)", "Next group", show=False),
        Binding("p", "move(-1)", "Previous group", show=False),
    ]
    DEFAULT_CSS = """
    GroupsScreen #groups { height: 1fr; }
    GroupsScreen #members { height: 1fr; border-top: solid $primary; }
    """

    def __init__(self, session: Session, step: Step, rows: list[RowFacts]) -> None:
        super().__init__(session)
        self._step = step
        self._rows = rows
        self._groups: list[Group] = []

    def compose(self) -> ComposeResult:
        yield Static(classes="title")
        yield Table[Group](id="groups", style_of=_style_of)
        yield Table[RowFacts](id="members", style_of=lambda row: DIM if row.masked else None)
        yield Static(classes="status")
        yield Footer()

    def on_mount(self) -> None:
        self.start(self._load, "groups")

    @property
    def _table(self) -> Table[Group]:
        return self.query_one("#groups", Table)

    @property
    def _members(self) -> Table[RowFacts]:
        return self.query_one("#members", Table)

    def place(self) -> Place | None:
        row = self._members.current
        return None if row is None else Place(self._step, row)

    def on_table_moved(self) -> None:
        if self._table.has_focus:
            self._show_members()

    def on_table_opened(self, event: Table.Opened) -> None:
        if event.control is self._table:
            self._members.focus()
        elif self._members.rows:
            self.open_places([Place(self._step, row) for row in self._members.rows], self._members.cursor)

    def on_table_header_clicked(self) -> None:
        self.action_sort()

    def action_switch(self) -> None:
        (self._members if self._table.has_focus else self._table).focus()

    def action_move(self, groups: int) -> None:
        self._table.put_cursor(self._table.cursor + groups)
        self._show_members()

    def action_back(self) -> None:
        if self._members.has_focus:
            self._table.focus()
        else:
            super().action_back()

    def action_sort(self) -> None:
        table = self._table
        name = table.columns[table.column].name if table.columns else "group"
        descending = table.mark != (name, True)
        table.mark = (name, descending)
        known = [group for group in self._groups if _key(group, name) is not None]
        known.sort(key=lambda group: _key(group, name), reverse=descending)  # type: ignore[arg-type, return-value]
        table.show(_COLUMNS, known + [group for group in self._groups if _key(group, name) is None], cursor=0)
        self._show_members()

    async def _load(self) -> None:
        self._groups = await asyncio.to_thread(group_rows, self._rows, self.session.group_by)
        means = [group.mean for group in self._groups if group.mean is not None]
        alike = sum(group.std == 0 for group in self._groups)
        self._table.show(_COLUMNS, self._groups)
        self._table.focus()
        self.title_line(f"step {self._step.label}  {len(self._groups)} groups of {len(self._rows)} rows")
        mean = number_text(sum(means) / len(means) if means else None)
        self.status_line(f"mean of the groups' means {mean}  {alike} groups without any difference teach nothing")
        self._show_members()

    def _show_members(self) -> None:
        group = self._table.current
        if group is None:
            return
        names = ("line", "score", "stop_reason", "cause", "turns", "tool_calls", "tool_errors", "response_tokens")
        by_name = {column.name: column for column in ROW_COLUMNS}
        columns = [by_name[name] for name in names]
        columns.insert(2, Column("advantage", "advantage", 9, lambda row: signed_text(group.advantage(row))))
        self._members.show(columns, group.rows, cursor=0)


def _style_of(group: Group) -> Style | None:
    return DIM if group.std == 0 or not group.scores else None
