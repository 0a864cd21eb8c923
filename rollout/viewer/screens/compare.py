"""Two steps side by side, largest changes first."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from rollout.viewer.columns import Column, number_text, signed_text
from rollout.viewer.compare import Change, Comparison, compare_steps
from rollout.viewer.screens.base import ViewerScreen
from rollout.viewer.session import Place, Session
from rollout.viewer.steps import Step
from rollout.viewer.widgets.styles import DIM
from rollout.viewer.widgets.table import Table

__all__ = ["CompareScreen"]

_COLUMNS: tuple[Column[Change], ...] = (
    Column("uid", "group", 14, lambda change: change.after.uid or f"line {change.after.line}", right=False, grows=True),
    Column("before", "before", 7, lambda change: number_text(change.before.score)),
    Column("after", "after", 7, lambda change: number_text(change.after.score)),
    Column("score", "score", 7, lambda change: signed_text(change.score)),
    Column("tokens", "tokens", 7, lambda change: signed_text(change.tokens)),
    Column("turns", "turns", 5, lambda change: signed_text(change.turns)),
    Column("ended", "ended by", 24, lambda change: _ended(change), right=False),
)


def _ended(change: Change) -> str:
    before, after = change.before.stop_reason, change.after.stop_reason
    return after if before == after else f"{before} → {after}"


def _key(change: Change, name: str) -> float | str | None:
    """What a column is sorted by; changes by their size, whatever their sign."""
    values: dict[str, float | str | None] = {
        "uid": change.after.uid,
        "before": change.before.score,
        "after": change.after.score,
        "score": change.score,
        "tokens": change.tokens,
        "turns": change.turns,
        "ended": _ended(change),
    }
    value = values[name]
    return abs(value) if isinstance(value, float | int) and name in ("score", "tokens", "turns") else value


class CompareScreen(ViewerScreen):
    """Rows of the same task in both steps. Enter opens the pair, and n and p go between the two."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort"),
        Binding("c", "back", "Close", show=False),
        Binding("n", "move(1)", "Next row", show=False),
        Binding("p", "move(-1)", "Previous row", show=False),
    ]

    def __init__(self, session: Session, before: Step, after: Step) -> None:
        super().__init__(session)
        self._before = before
        self._after = after
        self._comparison = Comparison((), 0, 0)

    def compose(self) -> ComposeResult:
        yield Static(classes="title")
        yield Table[Change](id="changes", style_of=_style_of)
        yield Static(classes="status")
        yield Footer()

    def on_mount(self) -> None:
        self.title_line(f"step {self._before.label} → step {self._after.label}")
        self._table.focus()
        self.start(self._load, "compare")

    @property
    def _table(self) -> Table[Change]:
        return self.query_one("#changes", Table)

    def place(self) -> Place | None:
        change = self._table.current
        return None if change is None else Place(self._after, change.after)

    def on_table_opened(self) -> None:
        change = self._table.current
        if change is not None:
            self.open_places([Place(self._before, change.before), Place(self._after, change.after)], 1)

    def on_table_header_clicked(self) -> None:
        self.action_sort()

    def action_move(self, rows: int) -> None:
        self._table.action_move(rows)

    def action_sort(self) -> None:
        table = self._table
        if not table.columns:
            return
        name = table.columns[table.column].name
        descending = table.mark != (name, True)
        table.mark = (name, descending)
        changes = self._comparison.changes
        known = [change for change in changes if _key(change, name) is not None]
        known.sort(key=lambda change: _key(change, name), reverse=descending)  # type: ignore[arg-type, return-value]
        table.show(_COLUMNS, known + [change for change in changes if _key(change, name) is None], cursor=0)

    async def _load(self) -> None:
        for step in (self._before, self._after):
            file = self.session.file(step)
            while not (state := await asyncio.to_thread(file.advance)).complete:
                share = 100 * state.position // max(1, state.size)
                self.status_line(f"reading step {step.label}: {share} %; esc leaves")
        rows = [self.session.file(step).rows() for step in (self._before, self._after)]
        found = await asyncio.to_thread(compare_steps, rows[0], rows[1], self.session.group_by)
        self._comparison = found
        self._table.show(_COLUMNS, found.changes)
        self.title_line(
            f"step {self._before.label} → step {self._after.label}  {len(found.changes)} pairs"
            f"  {found.better} better  {found.worse} worse  mean change {signed_text(found.mean_change)}"
        )
        alone = f"; without a partner: {found.only_before} before, {found.only_after} after"
        self.status_line("enter opens a pair" + (alone if found.only_before or found.only_after else ""))


def _style_of(change: Change) -> Style | None:
    return DIM if not change.score else None
