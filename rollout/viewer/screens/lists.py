"""Screens that are tables: steps, what was found, two steps side by side, and groups."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from rollout.viewer.columns import DIM, Column, number_text, row_column, signed_text
from rollout.viewer.facts import FIELDS, RowFacts
from rollout.viewer.groups import Change, Group, compare_steps, group_rows
from rollout.viewer.index import Step
from rollout.viewer.lookup import MAX_HITS, SearchHit, parse_query, search
from rollout.viewer.screens.base import ViewerScreen, take
from rollout.viewer.session import Place, Session
from rollout.viewer.widgets.table import Table

__all__ = ["CompareScreen", "GroupsScreen", "SearchScreen", "StepsScreen"]

_STEPS: tuple[Column[Step], ...] = (
    Column("step", 20, lambda step: step.label),
    Column("bytes", 14, lambda step: _stat(step)[0]),
    Column("last written", 20, lambda step: _stat(step)[1]),
)
_HITS: tuple[Column[SearchHit], ...] = (
    Column("step", 6, lambda hit: hit.step.label),
    Column("line", 6, lambda hit: hit.row.line),
    Column("score", 7, lambda hit: hit.row.score),
    Column("places", 6, lambda hit: hit.count),
    Column("text", 160, lambda hit: hit.snippet),
)
_CHANGES: tuple[Column[Change], ...] = (
    Column("group", 14, lambda change: change.after.uid or f"line {change.after.line}"),
    Column("before", 7, lambda change: change.before.score),
    Column("after", 7, lambda change: change.after.score),
    Column("score", 7, lambda change: change.score, signed_text),
    Column("tokens", 7, lambda change: change.tokens, signed_text),
    Column("turns", 5, lambda change: change.turns, signed_text),
    Column(
        "ended by", 24, lambda change: " → ".join(dict.fromkeys((change.before.stop_reason, change.after.stop_reason)))
    ),
)

_GROUPS: tuple[Column[Group], ...] = (
    Column("group", 16, lambda group: group.label),
    Column("rows", 5, lambda group: len(group.rows)),
    Column("unscored", 8, lambda group: group.masked),
    Column("mean", 7, lambda group: group.mean),
    Column("std", 7, lambda group: group.std),
    Column("best", 7, lambda group: group.best),
    Column("worst", 7, lambda group: group.worst),
    Column("tokens", 7, lambda group: _mean_tokens(group), lambda value: number_text(value, 0)),
)
_MEMBERS = ("line", "score", "stop_reason", "cause", "turns", "tool_calls", "tool_errors", "response_tokens")


def _mean_tokens(group: Group) -> float | None:
    known = [row.response_tokens for row in group.rows if row.response_tokens is not None]
    return sum(known) / len(known) if known else None


def _ended(change: Change) -> str:
    before, after = change.before.stop_reason, change.after.stop_reason
    return after if before == after else f"{before} → {after}"


def _stat(step: Step) -> tuple[int, str]:
    try:
        status = step.path.stat()
    except OSError:
        return 0, "gone"
    written = datetime.datetime.fromtimestamp(status.st_mtime).astimezone()
    return status.st_size, written.strftime("%Y-%m-%d %H:%M:%S")


class StepsScreen(ViewerScreen):
    """Calls `chosen` with the step on which Enter is pressed."""

    def __init__(self, session: Session, current: Step | None, chosen: Callable[[Step], None]) -> None:
        super().__init__(session)
        self._current = current
        self._chosen = chosen

    def on_mount(self) -> None:
        self.start(self._load, "steps")

    def place(self) -> Place | None:
        return None

    def on_data_table_cell_selected(self) -> None:
        self._chosen(self.table.items[self.table.cursor_row])
        self.dismiss(None)

    async def _load(self) -> None:
        steps = await asyncio.to_thread(self.session.folder.refresh)
        self.table.show(_STEPS, steps, at=self._current)
        self.title_line(f"{self.session.folder.path}  {len(steps)} steps")
        self.status_line("enter opens, esc leaves")


class SearchScreen(ViewerScreen):
    """Looks for `text` from the moment it is shown. Esc stops it, and then leaves."""

    def __init__(self, session: Session, text: str) -> None:
        super().__init__(session)
        self._query = parse_query(text)
        self.running = True
        """Whether it still looks."""

    def on_mount(self) -> None:
        self.title_line(f"find {self._query.source}")
        self.start(self._look, "search")

    def place(self) -> Place | None:
        hit = self.table.current
        return None if hit is None else Place(hit.step, hit.row)

    def on_data_table_cell_selected(self) -> None:
        places = [Place(hit.step, hit.row) for hit in self.table.items]
        self.open_places(places, self.table.cursor_row, find=self._query.source)

    def action_back(self) -> None:
        if self.running:
            self.workers.cancel_group(self, "search")
            self.running = False
            self.status_line(f"stopped; {len(self.table.items)} rows; esc leaves")
        else:
            super().action_back()

    async def _look(self) -> None:
        hits: list[SearchHit] = []
        more = ""
        looking = search(self.session.folder.steps, self._query)
        while (progress := await take(looking)) is not None:
            hits.extend(progress.hits)
            if progress.hits:
                self.table.show(_HITS, hits)
            if progress.problem:
                self.tell(progress.problem, problem=True)
            if progress.truncated:
                more = f", and more than {MAX_HITS} are not listed"
            self.status_line(f"{len(hits)} rows, {progress.percent} % read; enter opens, esc stops")
        self.running = False
        self.status_line(f"{len(hits)} rows{more}; enter opens, esc leaves")


class CompareScreen(ViewerScreen):
    """Rows of the same task in both steps. Enter opens the pair, and n and p go between the two."""

    def __init__(self, session: Session, before: Step, after: Step) -> None:
        super().__init__(session)
        self._before = before
        self._after = after

    def body(self) -> ComposeResult:
        yield Table[Change](style_of=lambda change: "" if change.score else DIM)

    def on_mount(self) -> None:
        self.title_line(f"step {self._before.label} → step {self._after.label}")
        self.start(self._load, "compare")

    def place(self) -> Place | None:
        change = self.table.current
        return None if change is None else Place(self._after, change.after)

    def on_data_table_cell_selected(self) -> None:
        change = self.table.current
        if change is not None:
            self.open_places([Place(self._before, change.before), Place(self._after, change.after)], 1)

    async def _load(self) -> None:
        for step in (self._before, self._after):
            await self.read_step(step)
        rows = [self.session.file(step).rows() for step in (self._before, self._after)]
        found = await asyncio.to_thread(compare_steps, rows[0], rows[1], self.session.group_by)
        self.table.show(_CHANGES, found.changes, top=True)
        self.title_line(
            f"step {self._before.label} → step {self._after.label}  {len(found.changes)} pairs"
            f"  {found.better} better  {found.worse} worse  mean change {signed_text(found.mean_change)}"
        )
        alone = f"; without a partner: {found.only_before} before, {found.only_after} after"
        self.status_line("enter opens a pair" + (alone if found.only_before or found.only_after else ""))


class GroupsScreen(ViewerScreen):
    """Groups of the rows that were shown when it was opened, with their statistics, and below them the rows of the
    current one with their advantages. A filter holds here too."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "app.focus_next", "Groups/rows", priority=True)]

    def __init__(self, session: Session, step: Step, rows: list[RowFacts]) -> None:
        super().__init__(session)
        self._step = step
        self._rows = rows

    def body(self) -> ComposeResult:
        yield Table[Group](id="groups", style_of=lambda group: DIM if group.std == 0 or not group.scores else "")
        yield Table[RowFacts](id="members", style_of=lambda row: DIM if row.masked else "")

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
        self.table.show(_GROUPS, groups, top=True)
        self.title_line(f"step {self._step.label}  {len(groups)} groups of {len(self._rows)} rows")
        mean = number_text(sum(means) / len(means) if means else None)
        self.status_line(f"mean of the groups' means {mean}  {alike} groups without any difference teach nothing")

    def _show_members(self) -> None:
        group = self.table.current
        if group is not None:
            columns = [row_column(FIELDS[name]) for name in _MEMBERS]
            columns.insert(2, Column("advantage", 9, group.advantage, signed_text))
            self.members.show(columns, group.rows, top=True)
