"""Groups of a step: the statistics of each, and below them the rows of the current one with their advantages."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from rollout.viewer.columns import Column, number_text, row_column, signed_text
from rollout.viewer.facts import FIELDS, RowFacts
from rollout.viewer.groups import Group, group_rows
from rollout.viewer.screens.base import ViewerScreen
from rollout.viewer.session import Place, Session
from rollout.viewer.steps import Step
from rollout.viewer.widgets.styles import DIM
from rollout.viewer.widgets.table import Table

__all__ = ["GroupsScreen"]

_COLUMNS: tuple[Column[Group], ...] = (
    Column("group", 16, lambda group: group.label),
    Column("rows", 5, lambda group: len(group.rows)),
    Column("unscored", 8, lambda group: group.masked),
    Column("mean", 7, lambda group: group.mean),
    Column("std", 7, lambda group: group.std),
    Column("best", 7, lambda group: group.best.score if group.best else None),
    Column("worst", 7, lambda group: group.worst.score if group.worst else None),
    Column("tokens", 7, lambda group: _mean_tokens(group), lambda value: number_text(value, 0)),
)
_MEMBERS = ("line", "score", "stop_reason", "cause", "turns", "tool_calls", "tool_errors", "response_tokens")


def _mean_tokens(group: Group) -> float | None:
    known = [row.response_tokens for row in group.rows if row.response_tokens is not None]
    return sum(known) / len(known) if known else None


class GroupsScreen(ViewerScreen):
    """Groups of the rows that were shown when it was opened: a filter holds here too."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "app.focus_next", "Groups/rows", priority=True)]

    def __init__(self, session: Session, step: Step, rows: list[RowFacts]) -> None:
        super().__init__(session)
        self._step = step
        self._rows = rows

    def body(self) -> ComposeResult:
        yield Table[Group](id="groups", style_of=lambda group: DIM if group.std == 0 or not group.scores else None)
        yield Table[RowFacts](id="members", style_of=lambda row: DIM if row.masked else None)

    def on_mount(self) -> None:
        self.start(self._load, "groups")

    @property
    def members(self) -> Table[Any]:
        """The rows of the current group."""
        return self.query_one("#members", Table)

    def place(self) -> Place | None:
        row = self.members.current
        return None if row is None else Place(self._step, row)

    def on_data_table_cell_highlighted(self, event: DataTable.CellHighlighted) -> None:
        if event.data_table is self.table:
            self._show_members()

    def on_data_table_cell_selected(self, event: DataTable.CellSelected) -> None:
        if event.data_table is self.table:
            self.members.focus()
        else:
            self.open_places([Place(self._step, row) for row in self.members.items], self.members.cursor_row)

    def action_back(self) -> None:
        if self.members.has_focus:
            self.table.focus()
        else:
            super().action_back()

    async def _load(self) -> None:
        groups = await asyncio.to_thread(group_rows, self._rows, self.session.group_by)
        means = [group.mean for group in groups if group.mean is not None]
        alike = sum(group.std == 0 for group in groups)
        self.table.show(_COLUMNS, groups, top=True)
        self.title_line(f"step {self._step.label}  {len(groups)} groups of {len(self._rows)} rows")
        mean = number_text(sum(means) / len(means) if means else None)
        self.status_line(f"mean of the groups' means {mean}  {alike} groups without any difference teach nothing")

    def _show_members(self) -> None:
        group = self.table.current
        if group is not None:
            columns = [row_column(FIELDS[name]) for name in _MEMBERS]
            columns.insert(2, Column("advantage", 9, group.advantage, signed_text))
            self.members.show(columns, group.rows, top=True)
