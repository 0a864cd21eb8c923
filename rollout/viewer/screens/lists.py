"""Screens that are tables: steps, what was found, two steps side by side, and groups."""

from __future__ import annotations

import asyncio
import datetime
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from rollout.viewer.rows.columns import DIM, Column, number_text, signed_text
from rollout.viewer.rows.groups import Change, Group, compare_steps, group_rows
from rollout.viewer.rows.lookup import MAX_HITS, SearchHit, parse_query, search
from rollout.viewer.rows.summary import FIELDS, RowSummary
from rollout.viewer.screens.base import Session, ViewerScreen
from rollout.viewer.widgets.table import Table

_STEPS: tuple[Column[Path], ...] = (
    Column("step", 20, lambda step: step.stem),
    Column("bytes", 14, lambda step: _stat(step)[0]),
    Column("last written", 20, lambda step: _stat(step)[1]),
)
_HITS: tuple[Column[SearchHit], ...] = (
    Column("step", 6, lambda hit: hit.row.path.stem),
    Column("line", 6, lambda hit: hit.row.line),
    Column("score", 7, lambda hit: hit.row.score),
    Column("places", 6, lambda hit: hit.count),
    Column("text", 160, lambda hit: hit.snippet),
)
_CHANGES: tuple[Column[Change], ...] = (
    Column("group", 14, lambda change: change.after.uid or f"line {change.after.line}"),
    Column("before", 7, lambda change: change.before.score),
    Column("after", 7, lambda change: change.after.score),
    Column("score", 7, lambda change: change.of("score"), signed_text),
    Column("tokens", 7, lambda change: change.tokens, signed_text),
    Column("turns", 5, lambda change: change.of("turns"), signed_text),
    Column(
        "ended by", 24, lambda change: " → ".join(dict.fromkeys((change.before.stop_reason, change.after.stop_reason)))
    ),
)
_GROUPS: tuple[Column[Group], ...] = (
    Column("group", 16, lambda group: group.label),
    Column("rows", 5, lambda group: len(group.rows)),
    Column("unscored", 8, lambda group: len(group.rows) - len(group.scores)),
    Column("mean", 7, lambda group: group.mean),
    Column("std", 7, lambda group: group.std),
    Column("best", 7, lambda group: max(group.scores, default=None)),
    Column("worst", 7, lambda group: min(group.scores, default=None)),
    Column("tokens", 7, lambda group: _mean_tokens(group)),
)
_MEMBERS = ("line", "score", "stop_reason", "cause", "turns", "tool_calls", "tool_errors", "response_tokens")


def _mean_tokens(group: Group) -> float | None:
    known = [row.response_tokens for row in group.rows if row.response_tokens is not None]
    return round(statistics.fmean(known)) if known else None


def _stat(step: Path) -> tuple[int, str]:
    try:
        status = step.stat()
    except OSError:
        return 0, "gone"
    return status.st_size, datetime.datetime.fromtimestamp(status.st_mtime).astimezone().strftime("%Y-%m-%d %H:%M:%S")


class StepsScreen(ViewerScreen):
    """Calls `chosen` with the step on which Enter is pressed."""

    def __init__(self, session: Session, current: Path | None, chosen: Callable[[Path], None]) -> None:
        super().__init__(session, row_of=lambda step: None)
        self._current = current
        self._chosen = chosen

    @work
    async def on_mount(self) -> None:
        steps = await asyncio.to_thread(self.session.folder.refresh)
        self.table.show(_STEPS, steps, at=self._current)
        self.title_line(f"{self.session.folder.path}  {len(steps)} steps")
        self.status_line("enter opens, esc leaves")

    def on_data_table_cell_selected(self) -> None:
        self._chosen(self.table.items[self.table.cursor_row])
        self.dismiss(None)


class SearchScreen(ViewerScreen):
    """Looks for `text` from the moment it is shown. Esc stops it, and then leaves."""

    def __init__(self, session: Session, text: str) -> None:
        super().__init__(session, row_of=lambda hit: hit.row)
        self._text = text
        self.running = True
        """Says whether it still looks."""

    def on_mount(self) -> None:
        self.title_line(f"find {self._text}")
        self._look()

    def on_data_table_cell_selected(self) -> None:
        self.open_rows([hit.row for hit in self.table.items], self.table.cursor_row, find=self._text)

    def action_back(self) -> None:
        if self.running:
            self.workers.cancel_group(self, "search")
            self.running = False
            self.status_line(f"stopped; {len(self.table.items)} rows; esc leaves")
        else:
            super().action_back()

    @work(group="search")
    async def _look(self) -> None:
        hits: list[SearchHit] = []
        more = ""
        looking = search(self.session.folder.steps, parse_query(self._text))
        while (progress := await asyncio.to_thread(next, looking, None)) is not None:
            if progress.hits:
                hits.extend(progress.hits)
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

    def __init__(self, session: Session, before: Path, after: Path) -> None:
        super().__init__(session, lambda change: "" if change.of("score") else DIM, lambda change: change.after)
        self._before = before
        self._after = after

    def on_data_table_cell_selected(self) -> None:
        change = self.table.items[self.table.cursor_row]
        self.open_rows([change.before, change.after], 1)

    @work
    async def on_mount(self) -> None:
        title = f"step {self._before.stem} → step {self._after.stem}"
        self.title_line(title)
        before, after = [await self.read_step(step) for step in (self._before, self._after)]
        changes = await asyncio.to_thread(compare_steps, before, after)
        self.table.show(_CHANGES, changes, top=True)
        scores = [score for change in changes if (score := change.of("score")) is not None]
        better, worse = sum(score > 0 for score in scores), sum(score < 0 for score in scores)
        mean = signed_text(statistics.fmean(scores) if scores else None)
        self.title_line(f"{title}  {len(changes)} pairs  {better} better  {worse} worse  mean change {mean}")
        alone = [sum(not row.problem for row in rows) - len(changes) for rows in (before, after)]
        tail = f"; without a partner: {alone[0]} before, {alone[1]} after" if any(alone) else ""
        self.status_line(f"enter opens a pair{tail}")


class GroupsScreen(ViewerScreen):
    """Groups of the rows that were shown when it was opened, with their statistics, and below them the rows of the
    current one with their advantages. A filter holds here too."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "app.focus_next", "Groups/rows", priority=True)]

    def __init__(self, session: Session, rows: Sequence[RowSummary]) -> None:
        super().__init__(session, lambda group: DIM if group.std == 0 or not group.scores else "")
        self._rows = rows
        self.members = Table[RowSummary](lambda row: DIM if row.masked else "")
        """The rows of the current group."""

    def body(self) -> ComposeResult:
        yield self.table
        yield self.members

    def row(self) -> RowSummary | None:
        return self.members.current

    def on_data_table_cell_highlighted(self, event: DataTable.CellHighlighted) -> None:
        group = self.table.current
        if event.data_table is self.table and group is not None:
            columns = [FIELDS[name] for name in _MEMBERS]
            columns.insert(2, Column("advantage", 9, group.advantage, signed_text))
            self.members.show(columns, group.rows, top=True)

    def on_data_table_cell_selected(self, event: DataTable.CellSelected) -> None:
        if event.data_table is self.table:
            self.members.focus()
        else:
            self.open_rows(self.members.items, self.members.cursor_row)

    def action_back(self) -> None:
        if self.members.has_focus:
            self.table.focus()
        else:
            super().action_back()

    @work
    async def on_mount(self) -> None:
        groups = await asyncio.to_thread(group_rows, self._rows)
        means = [group.mean for group in groups if group.mean is not None]
        alike = sum(group.std == 0 for group in groups)
        self.table.show(_GROUPS, groups, top=True)
        self.title_line(f"step {self._rows[0].path.stem}  {len(groups)} groups of {len(self._rows)} rows")
        mean = number_text(statistics.fmean(means) if means else None)
        self.status_line(f"mean of the groups' means {mean}  {alike} groups without any difference teach nothing")
