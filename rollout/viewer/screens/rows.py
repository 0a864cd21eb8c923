"""The rows of a step: filtered, sorted, and growing while the rollout runs."""

from __future__ import annotations

import asyncio
import math
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from rollout.viewer.columns import DIM, PROBLEM, number_text, row_columns
from rollout.viewer.facts import FIELDS, RowFacts, extra_names
from rollout.viewer.filters import Filter, FilterError, RowView, parse_filter
from rollout.viewer.index import IndexState, Step, StepFile
from rollout.viewer.screens.base import ViewerScreen, query_problem
from rollout.viewer.screens.lists import CompareScreen, GroupsScreen, SearchScreen, StepsScreen
from rollout.viewer.session import Place, Session
from rollout.viewer.widgets.table import Table

__all__ = ["POLL_S", "RowsScreen"]

POLL_S = 0.5
"""How often a file is looked at for new rows, and the folder for new steps."""


class RowsScreen(ViewerScreen):
    """The first screen. `filter` is an expression to begin with, `step` the label of the step to begin with (the
    newest one else)."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("f", "find", "Find"),
        Binding("o", "steps", "Steps"),
        Binding("u", "groups", "Groups"),
        Binding("c", "compare", "Compare"),
        Binding("w", "follow", "Follow"),
        Binding("N", "step(1)", "Next step", show=False),
        Binding("P", "step(-1)", "Previous step", show=False),
        Binding("E", "export_all", "Export all rows", show=False),
    ]
    HELP = "\n".join(
        [
            "# Filters",
            '`score>0.5 not cause=infra uid!=a text~"regex" word`',
            *(f"- `{field.name}` {field.help}" for field in FIELDS.values()),
        ]
    )

    def __init__(self, session: Session, *, filter: str = "", step: str | None = None, follow: bool = False) -> None:
        super().__init__(session)
        self.following = follow
        self.step: Step | None = None
        self.filter: Filter | None = None
        self._first_step = step
        self._filter_text = filter
        self._state: IndexState | None = None
        self._summary = ""
        self._to_top = False
        self._known_extras: dict[str, None] = {}
        self.complete = False
        """Whether everything that the file holds by now is shown."""

    def body(self) -> ComposeResult:
        yield Table[RowFacts](style_of=_style_of, id="rows")

    def on_mount(self) -> None:
        steps = self.session.folder.steps
        self.step = self.session.folder.named(self._first_step) if self._first_step is not None else None
        if self.step is None and steps:
            self.step = steps[-1]
        self.reload()

    def place(self) -> Place | None:
        row = self.table.current
        return None if row is None or self.step is None else Place(self.step, row)

    def open_step(self, step: Step) -> None:
        """Shows another step."""
        self.step = step
        self._state = None
        self.table.show((), ())
        self.reload()

    def reload(self) -> None:
        """Judges the rows anew, under the filter of now; the cursor goes to the first one."""
        self.complete = False
        self._to_top = True
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
            return str(error)
        return ""

    def on_data_table_cell_selected(self) -> None:
        self.open_places(self._places(), self.table.cursor_row)

    def on_data_table_cell_highlighted(self) -> None:
        self._draw_lines()

    def action_step(self, steps: int) -> None:
        known = self.session.folder.steps
        if self.step in known:
            position = known.index(self.step) + steps
            if 0 <= position < len(known):
                self.open_step(known[position])
            else:
                self.tell("there is no further step")

    def action_filter(self) -> None:
        question = "filter, like: score>0.5 not cause=infra word; ? lists the fields"
        self.ask(question, self.set_filter, value=self._filter_text, check=self.filter_problem)

    def action_find(self) -> None:
        def start(text: str) -> None:
            self.app.push_screen(SearchScreen(self.session, text))

        self.ask("find in all rows of all steps; /regular expression/", start, check=query_problem)

    def action_steps(self) -> None:
        self.app.push_screen(StepsScreen(self.session, self.step, self.open_step))

    def action_groups(self) -> None:
        if self.step is not None:
            self.app.push_screen(GroupsScreen(self.session, self.step, list(self.table.items)))

    def action_compare(self) -> None:
        after, named = self.step, self.session.folder.named
        others = [step for step in self.session.folder.steps if step != after]
        if after is None or not others:
            self.tell("there is no other step to compare with")
            return
        earlier = [step for step in others if step.order < after.order]

        def start(label: str) -> None:
            before = named(label.strip())
            assert before is not None  # or the check had refused it
            self.app.push_screen(CompareScreen(self.session, before, after))

        self.ask(
            f"compare step {after.label} with step",
            start,
            value=(earlier or others)[-1].label,
            check=lambda text: "" if named(text.strip()) else f"there is no step {text.strip()!r}",
        )

    def action_follow(self) -> None:
        self.following = not self.following
        self.tell("following: newest step, last row" if self.following else "no longer following")
        self.reload()

    def action_export_all(self) -> None:
        if self.step is not None:
            places = [place for place in self._places() if not place.row.problem]
            name = f"rows-{self.step.label}.jsonl"
            self.ask(f"export {len(places)} rows to", lambda path: self.export(places, path), value=name)

    def _places(self) -> list[Place]:
        step = self.step
        return [] if step is None else [Place(step, row) for row in self.table.items]

    async def _watch(self) -> None:
        """Reads the file to its end, shows what passes, and looks again. Superseded by the next one."""
        while self.step is None:
            self.title_line(f"no step yet, waiting for one  {self.session.folder.path}")
            await asyncio.sleep(POLL_S)
            steps = await asyncio.to_thread(self.session.folder.refresh)
            self.step = steps[-1] if steps else None
        step, file = self.step, self.session.file(self.step)
        view, generation, drawn = RowView(file.read), -1, -1
        while True:
            self._state = state = await asyncio.to_thread(file.advance)
            if state.generation != generation:
                view, generation, drawn = self._fresh_view(file), state.generation, -1
            view.extend(file.rows(len(view.rows)))
            await asyncio.to_thread(view.advance)
            whole = state.complete and not view.pending
            if drawn < 0 or (whole and drawn != len(view.rows)):
                drawn = len(view.rows) if whole else 0
                self._show(view)
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
        return RowView(file.read, self.filter)

    def _show(self, view: RowView) -> None:
        rows = view.passed
        newest = rows[-1] if self.following and rows else None
        columns = row_columns(view.rows, extra_names(view.rows[:1000]))
        self.table.show(columns, list(rows), top=self._to_top, at=newest)
        self._to_top = False
        scores = [row.score for row in rows if row.score is not None and math.isfinite(row.score) and not row.masked]
        masked = sum(row.masked for row in rows)
        parts = [f"of {len(view.rows)}  filter {self.filter.source}"] if self.filter is not None else []
        parts += [f"mean score {number_text(math.fsum(scores) / len(scores))}"] if scores else []
        parts += [f"masked {masked}"] if masked else []
        parts += [f"only the first {self.table.row_count} are shown"] if len(rows) > self.table.row_count else []
        self._summary = "  ".join(parts)

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
        table = self.table
        parts = [f"row {table.cursor_row + 1 if table.items else 0} of {len(table.items)}", self._summary]
        if state.problem:
            parts.append(f"can't be read: {state.problem}")
        elif not self.complete:
            parts.append(f"reading {100 * state.position // max(1, state.size)} %")
        if state.waits_for:
            parts.append("last line not whole yet")
        self.status_line("  ".join(filter(None, parts)))


def _style_of(row: RowFacts) -> str:
    return PROBLEM if row.problem else DIM if row.masked else ""
