"""The rows of a step: filtered, sorted, and growing while the rollout runs."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from rollout.viewer.columns import Column, number_text, row_columns
from rollout.viewer.facts import RowFacts
from rollout.viewer.fields import extra_names, field_named
from rollout.viewer.filters import Filter, FilterError, parse_filter
from rollout.viewer.index import IndexState, StepFile
from rollout.viewer.rowview import RowView, Sorting
from rollout.viewer.screens.base import ViewerScreen
from rollout.viewer.screens.compare import CompareScreen
from rollout.viewer.screens.groups import GroupsScreen
from rollout.viewer.screens.search import SearchScreen, query_problem
from rollout.viewer.screens.steps import StepsScreen
from rollout.viewer.session import Place, Session
from rollout.viewer.steps import Step
from rollout.viewer.widgets.styles import DIM, PROBLEM
from rollout.viewer.widgets.table import Table

__all__ = ["POLL_S", "RowsScreen"]

POLL_S = 0.5
"""How often a file is looked at for new rows, and the folder for new steps."""
DRAW_S = 0.25
"""How often a table is drawn anew while its file is read."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a thread made of the rows for the screen."""

    columns: list[Column[RowFacts]]
    rows: list[RowFacts]
    cursor: int
    total: int
    mean: float | None
    masked: int


class RowsScreen(ViewerScreen):
    """The first screen. `filter` is an expression to begin with, `step` the label of the step to begin with (the
    newest one else)."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("f", "find", "Find"),
        Binding("s", "sort", "Sort"),
        Binding("o", "steps", "Steps"),
        Binding("u", "groups", "Groups"),
        Binding("c", "compare", "Compare"),
        Binding("w", "follow", "Follow"),
        Binding("n", "move(1)", "Next row", show=False),
        Binding("p", "move(-1)", "Previous row", show=False),
        Binding("N", "step(1)", "Next step", show=False),
        Binding("P", "step(-1)", "Previous step", show=False),
        Binding("E", "export_all", "Export all", show=False),
    ]
    DEFAULT_CSS = "RowsScreen Table { height: 1fr; }"

    def __init__(self, session: Session, *, filter: str = "", step: str | None = None, follow: bool = False) -> None:
        super().__init__(session)
        self.following = follow
        self.step: Step | None = None
        self.filter: Filter | None = None
        self.sorting: Sorting | None = None
        self._first_step = step
        self._filter_text = filter
        self._state: IndexState | None = None
        self._shown = _Shown([], [], 0, 0, None, 0)
        self._to_top = False
        self._known_extras: dict[str, None] = {}
        self.complete = False
        """Whether everything that the file holds by now is shown."""

    def compose(self) -> ComposeResult:
        yield Static(classes="title")
        yield Table[RowFacts](style_of=_style_of, id="rows")
        yield Static(classes="status")
        yield Footer()

    def on_mount(self) -> None:
        steps = self.session.folder.steps
        self.step = self.session.folder.named(self._first_step) if self._first_step is not None else None
        if self.step is None and steps:
            self.step = steps[-1]
        self._table.focus()
        self.reload()

    @property
    def _table(self) -> Table[RowFacts]:
        return self.query_one("#rows", Table)

    def place(self) -> Place | None:
        row = self._table.current
        return None if row is None or self.step is None else Place(self.step, row)

    def open_step(self, step: Step) -> None:
        """Shows another step."""
        self.step = step
        self._state = None
        self.reload(empty=True)

    def reload(self, *, empty: bool = False) -> None:
        """Judges the rows anew, under the filter and the sorting of now; the cursor goes to the first one."""
        self.complete = False
        self._to_top = True
        if empty:
            self._table.show((), (), cursor=0)
        self.start(self._watch, "rows")

    def set_filter(self, text: str) -> None:
        """Filters by an expression that `filter_problem` accepts; an empty one shows all rows."""
        self._filter_text = text.strip()
        self.reload()

    def filter_problem(self, text: str) -> str:
        """What is wrong with an expression; empty when nothing is."""
        try:
            parse_filter(text, self._extras())
        except FilterError as error:
            return f"{' ' * error.position}↑ {error}"
        return ""

    def on_table_opened(self) -> None:
        if self.step is not None and self._shown.rows:
            step = self.step
            self.open_places([Place(step, row) for row in self._table.rows], self._table.cursor)

    def on_table_moved(self) -> None:
        self._draw_lines()

    def on_table_header_clicked(self) -> None:
        self.action_sort()

    def action_move(self, rows: int) -> None:
        self._table.action_move(rows)

    def action_step(self, steps: int) -> None:
        known = self.session.folder.steps
        if self.step in known:
            position = known.index(self.step) + steps
            if 0 <= position < len(known):
                self.open_step(known[position])
            else:
                self.tell("there is no further step")

    def action_filter(self) -> None:
        hint = 'score>0.5  stop_reason=turns  not cause=infra  text~"regex"  word  (? lists the fields)'
        self.ask("filter", self.set_filter, value=self._filter_text, check=self.filter_problem, hint=hint)

    def action_find(self) -> None:
        def start(text: str) -> None:
            self.app.push_screen(SearchScreen(self.session, text))

        self.ask("find in all rows of all steps; /regular expression/", start, check=query_problem)

    def action_sort(self) -> None:
        columns = self._table.columns
        if not columns:
            return
        name = columns[self._table.column].name
        field = field_named(name, self._extras())
        before = self.sorting
        if field is None:
            return
        if before is None or before.field.name != name:
            self.sorting = Sorting(field, True)
        else:
            self.sorting = Sorting(field, False) if before.descending else None
        self.reload()

    def action_steps(self) -> None:
        self.app.push_screen(StepsScreen(self.session, self.step, self.open_step))

    def action_groups(self) -> None:
        if self.step is not None:
            self.app.push_screen(GroupsScreen(self.session, self.step, list(self._table.rows)))

    def action_compare(self) -> None:
        known = self.session.folder.steps
        if self.step is None or len(known) < 2:
            self.tell("there is no other step to compare with")
            return
        after = self.step
        others = [step for step in known if step != after]
        earlier = [step for step in others if step.order < after.order]

        def start(label: str) -> None:
            before = self.session.folder.named(label.strip())
            assert before is not None  # or the check had refused it
            self.app.push_screen(CompareScreen(self.session, before, after))

        self.ask(
            f"compare step {after.label} with step",
            start,
            value=(earlier or others)[-1].label,
            check=lambda text: "" if self.session.folder.named(text.strip()) else f"there is no step {text.strip()!r}",
        )

    def action_follow(self) -> None:
        self.following = not self.following
        self.tell("following: newest step, last row" if self.following else "no longer following")
        self.reload()

    def action_export_all(self) -> None:
        if self.step is None:
            return
        places = [Place(self.step, row) for row in self._table.rows if not row.problem]
        name = f"rows-{self.step.label}.jsonl"
        self.ask(f"export {len(places)} rows to", lambda path: self.export(places, path), value=name)

    async def _watch(self) -> None:
        """Reads the file to its end, shows what passes, and looks again. Superseded by the next one."""
        while self.step is None:
            self.title_line(f"no step yet, waiting for one  {self.session.folder.path}")
            await asyncio.sleep(POLL_S)
            steps = await asyncio.to_thread(self.session.folder.refresh)
            self.step = steps[-1] if steps else None
        step, file = self.step, self.session.file(self.step)
        await asyncio.to_thread(file.advance)
        view, generation, drawn, rows_before = self._fresh_view(file), file.state.generation, 0.0, -1
        while True:
            self._state = await asyncio.to_thread(file.advance)
            if self._state.generation != generation:
                view, generation, rows_before = self._fresh_view(file), self._state.generation, -1
            await asyncio.to_thread(_extend, view, file)
            whole = self._state.complete and not view.pending
            due = whole or time.monotonic() - drawn >= DRAW_S
            if due and len(view.rows) - view.pending != rows_before:
                rows_before = len(view.rows) - view.pending
                await self._show(view)
                drawn = time.monotonic()
            self.complete = whole
            self._draw_lines()
            if not whole:
                continue
            await asyncio.sleep(POLL_S)
            steps = await asyncio.to_thread(self.session.folder.refresh)
            if self.following and steps and steps[-1] != step:
                self.call_later(self.open_step, steps[-1])
                return

    def _fresh_view(self, file: StepFile) -> RowView:
        self.filter = None
        if self._filter_text:
            try:
                self.filter = parse_filter(self._filter_text, self._extras())
            except FilterError as error:  # of a setting, or of a field that this step has not
                self.tell(f"no filter: {error}", problem=True)
        return RowView(file.read, filter=self.filter)

    async def _show(self, view: RowView) -> None:
        table = self._table
        line = table.current.line if table.current is not None and not self._to_top else None
        shown = await asyncio.to_thread(
            _ordered, view, self.sorting, line, 0 if self._to_top else table.cursor, self.following
        )
        self._to_top = False
        self._shown = shown
        table.mark = (self.sorting.field.name, self.sorting.descending) if self.sorting else None
        table.show(shown.columns, shown.rows, cursor=shown.cursor)
        self._draw_lines()

    def _extras(self) -> list[str]:
        """Of this step, and of those that were looked at before: a new step may not have a row yet."""
        if self.step is not None:
            self._known_extras |= dict.fromkeys(extra_names(self.session.file(self.step).rows()[:1000]))
        return list(self._known_extras)

    def _draw_lines(self) -> None:
        state, step = self._state, self.step
        if state is None or step is None:
            return
        steps = self.session.folder.steps
        position = steps.index(step) + 1 if step in steps else "?"
        follow = "  FOLLOWING" if self.following else ""
        self.title_line(f"step {step.label} ({position} of {len(steps)}){follow}  {self.session.folder.path}")
        shown = self._shown
        parts = [f"row {self._table.cursor + 1 if shown.rows else 0} of {len(shown.rows)}"]
        if self.filter is not None:
            parts.append(f"of {shown.total}  filter {self.filter.source}")
        if shown.mean is not None:
            parts.append(f"mean score {number_text(shown.mean)}")
        if shown.masked:
            parts.append(f"masked {shown.masked}")
        if state.problem:
            parts.append(f"can't be read: {state.problem}")
        elif not self.complete:
            parts.append(f"reading {100 * state.position // max(1, state.size)} %")
        if state.waits_for:
            parts.append("last line not whole yet")
        self.status_line("  ".join(parts))


def _style_of(row: RowFacts) -> Style | None:
    return PROBLEM if row.problem else DIM if row.masked else None


def _extend(view: RowView, file: StepFile) -> None:
    """Takes the file's new rows into the view, and judges some."""
    have = len(view.rows)
    fresh = file.rows(max(0, have - 1))
    if have and (not fresh or fresh[0] is not view.rows[-1]):
        view.drop_last()  # it was of a line without an end
        view.extend(fresh)
    else:
        view.extend(fresh[1:] if have else fresh)
    view.advance()


def _ordered(view: RowView, sorting: Sorting | None, line: int | None, cursor: int, follow: bool) -> _Shown:
    rows = view.ordered(sorting)
    if follow:
        newest = max((row.line for row in rows), default=0)
        cursor = next((i for i, row in enumerate(rows) if row.line == newest), 0)
    elif line is not None:
        cursor = next((i for i, row in enumerate(rows) if row.line == line), cursor)
    scores = [row.score for row in rows if row.score is not None and math.isfinite(row.score) and not row.masked]
    return _Shown(
        columns=row_columns(view.rows, extra_names(view.rows[:1000])),
        rows=rows,
        cursor=cursor,
        total=len(view.rows),
        mean=math.fsum(scores) / len(scores) if scores else None,
        masked=sum(row.masked for row in rows),
    )
