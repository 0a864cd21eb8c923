"""The viewer's program, and its first screen: the rows of a step, filtered, sorted, and growing while the rollout runs.

`ViewerApp(session).run()`. Needs Textual.
"""

from __future__ import annotations

import asyncio
import statistics
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import App
from textual.binding import Binding, BindingType

from rollout.viewer.rows.columns import DIM, PROBLEM, number_text
from rollout.viewer.rows.filters import FilterError, RowView, parse_filter
from rollout.viewer.rows.groups import scores_of
from rollout.viewer.rows.index import StepFile, step_order
from rollout.viewer.rows.lookup import parse_query
from rollout.viewer.rows.summary import FIELDS, RowSummary, extra_names, row_columns
from rollout.viewer.screens.base import PromptScreen, Session, ViewerScreen
from rollout.viewer.screens.lists import CompareScreen, GroupsScreen, SearchScreen, StepsScreen

POLL_S = 0.5
"""Seconds between two looks at a file for new rows, and at the folder for new steps."""


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

    def __init__(self, session: Session, *, filter: str = "", step: Path | None = None, follow: bool = False) -> None:
        super().__init__(session, _style_of)
        self.following = follow
        self.step = step
        self.complete = False
        """Says whether everything that the file holds by now is shown."""
        self._filter_text = filter
        self._summary = ""
        self._to_top = False
        self._known_extras: dict[str, None] = {}

    def on_mount(self) -> None:
        if self.step is None and self.session.folder.steps:
            self.step = self.session.folder.steps[-1]
        self.reload()

    def open_step(self, step: Path) -> None:
        """Shows another step."""
        self.step = step
        self._summary = ""
        self.table.show((), ())
        self.reload()

    def reload(self) -> None:
        """Judges the rows anew, under the filter of now; the cursor goes to the first one."""
        self.complete = False
        self._to_top = True
        self._watch()

    def on_data_table_cell_selected(self) -> None:
        self.open_rows(self.table.items, self.table.cursor_row)

    def on_data_table_cell_highlighted(self) -> None:
        self._draw_lines()

    def action_step(self, steps: int) -> None:
        known = self.session.folder.steps
        position = known.index(self.step) + steps if self.step in known else -1
        if 0 <= position < len(known):
            self.open_step(known[position])
        else:
            self.tell("there is no further step")

    @work
    async def action_filter(self) -> None:
        question = "filter, like: score>0.5 not cause=infra word; ? lists the fields"
        check = partial(parse_filter, extras=self._extras())
        text = await self.app.push_screen_wait(PromptScreen(question, self._filter_text, check))
        if text is not None:
            self._filter_text = text.strip()
            self.reload()

    @work
    async def action_find(self) -> None:
        question = "find in all rows of all steps; /regular expression/"
        text = await self.app.push_screen_wait(PromptScreen(question, check=parse_query))
        if text is not None:
            self.app.push_screen(SearchScreen(self.session, text))

    def action_steps(self) -> None:
        self.app.push_screen(StepsScreen(self.session, self.step, self.open_step))

    def action_groups(self) -> None:
        if self.table.items:
            self.app.push_screen(GroupsScreen(self.session, list(self.table.items)))

    @work
    async def action_compare(self) -> None:
        after, folder = self.step, self.session.folder
        others = [step for step in folder.steps if step != after]
        if after is None or not others:
            self.tell("there is no other step to compare with")
            return
        earlier = [step for step in others if step_order(step) < step_order(after)]
        question, value = f"compare step {after.stem} with step", (earlier or others)[-1].stem
        label = await self.app.push_screen_wait(PromptScreen(question, value, folder.named))
        if label is not None:
            self.app.push_screen(CompareScreen(self.session, folder.named(label), after))

    def action_follow(self) -> None:
        self.following = not self.following
        self.tell("following: newest step, last row" if self.following else "no longer following")
        self.reload()

    def action_export_all(self) -> None:
        rows = [row for row in self.table.items if not row.problem]
        if self.step is not None:
            self.export(rows, f"{len(rows)} rows", f"rows-{self.step.stem}.jsonl")

    @work(group="rows", exclusive=True)
    async def _watch(self) -> None:
        """Reads the file to its end, shows what passes, and looks again. Superseded by the next one."""
        while self.step is None:
            self.title_line(f"no step yet, waiting for one  {self.session.folder.path}")
            await asyncio.sleep(POLL_S)
            steps = await asyncio.to_thread(self.session.folder.refresh)
            self.step = steps[-1] if steps else None
        step, file = self.step, self.session.folder.open(self.step)
        view: RowView | None = None
        drawn = -1
        while True:
            await asyncio.to_thread(file.advance)
            if view is None or view.rows is not file.rows:  # the file was replaced
                view, drawn = self._view(file), -1
            await asyncio.to_thread(view.advance)
            whole = file.complete and not view.pending
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

    def _view(self, file: StepFile) -> RowView:
        """The rows that pass the filter of now."""
        try:
            return RowView(file, parse_filter(self._filter_text, self._extras()) if self._filter_text else None)
        except FilterError as error:  # of a setting, or of a field that this step has not
            self.tell(f"no filter: {error}", problem=True)
            return RowView(file)

    def _show(self, view: RowView) -> None:
        rows = view.passed
        newest = rows[-1] if self.following and rows else None
        self.table.show(row_columns(view.rows), list(rows), top=self._to_top, at=newest)
        self._to_top = False
        scores, masked, drawn = scores_of(rows), sum(row.masked for row in rows), self.table.row_count
        parts = [f"of {len(view.rows)}  filter {view.filter.source}"] if view.filter is not None else []
        parts += [f"mean score {number_text(statistics.fmean(scores))}"] if scores else []
        parts += [f"masked {masked}"] if masked else []
        parts += [f"only the first {drawn} are shown"] if len(rows) > drawn else []
        self._summary = "  ".join(parts)

    def _extras(self) -> list[str]:
        """Extras of this step, and of those that were looked at before: a new step may not have a row yet."""
        if self.step is not None:
            self._known_extras |= dict.fromkeys(extra_names(self.session.folder.open(self.step).rows))
        return list(self._known_extras)

    def _draw_lines(self) -> None:
        if self.step is None:
            return
        step, steps, file = self.step, self.session.folder.steps, self.session.folder.open(self.step)
        position = steps.index(step) + 1 if step in steps else "?"
        follow = "  FOLLOWING" if self.following else ""
        self.title_line(f"step {step.stem} ({position} of {len(steps)}){follow}  {self.session.folder.path}")
        table = self.table
        parts = [f"row {table.cursor_row + 1 if table.items else 0} of {len(table.items)}", self._summary]
        if file.problem:
            parts.append(f"can't be read: {file.problem}")
        elif not self.complete:
            parts.append(f"reading {file.percent} %")
        if file.waits_for:
            parts.append("last line not whole yet")
        self.status_line("  ".join(filter(None, parts)))


def _style_of(row: RowSummary) -> str:
    return PROBLEM if row.problem else DIM if row.masked else ""


class ViewerApp(App[None]):
    """Shows a dump until q is pressed."""

    TITLE = "fairbox view"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "Quit", show=False, priority=True)]
    CSS = """
    Screen { layers: base; }
    ScrollView { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    HelpPanel #widget-help { overflow-y: auto; }
    """

    def __init__(self, session: Session, *, filter: str = "", step: Path | None = None, follow: bool = False) -> None:
        super().__init__()
        self.rows = RowsScreen(session, filter=filter, step=step, follow=follow)
        """The first screen."""

    def on_mount(self) -> None:
        self.push_screen(self.rows)
