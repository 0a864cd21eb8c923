"""What every screen can do: notices, questions, copying, exporting, jumping to a request id.

Invariant: nothing here reads a file on the loop that draws; what takes longer runs in a thread, a slice at a time, and
is cancelled when it is superseded or its screen is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, HelpPanel, Input, Static

from fairbox.errors import FairboxError
from rollout.viewer.columns import visible
from rollout.viewer.index import Step
from rollout.viewer.lookup import Query, QueryError, parse_query, request_query, search
from rollout.viewer.session import Place, Session
from rollout.viewer.widgets.table import Table

__all__ = ["PromptScreen", "ViewerScreen", "query_problem", "take"]

T = TypeVar("T")

MAX_COPY_BYTES = 74_000
"""What terminals take as one clipboard sequence; larger rows are exported."""


async def take(iterator: Iterator[T]) -> T | None:
    """The next item, computed in a thread; None at the end."""
    return await asyncio.to_thread(next, iterator, None)


def query_problem(text: str, parse: Callable[[str], Query] = parse_query) -> str:
    """What is wrong with a text to look for; empty when nothing is."""
    try:
        parse(text)
    except QueryError as error:
        return str(error)
    return ""


class PromptScreen(ModalScreen[str | None]):
    """Asks for one line at the foot of the screen. `check` says what is wrong with it, or nothing. Esc gives None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]
    DEFAULT_CSS = """
    PromptScreen { align: left bottom; background: $background 40%; }
    PromptScreen Vertical { height: auto; background: $panel; border-top: solid $accent; }
    PromptScreen #problem { color: $error; }
    """

    def __init__(self, question: str, value: str, check: Callable[[str], str]) -> None:
        super().__init__()
        self._question = question
        self._value = value
        self._check = check

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(self._question, style="bold"))
            yield Input(self._value, compact=True)
            yield Static(id="problem")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        problem = self._check(event.value)
        if problem:
            self.query_one("#problem", Static).update(Text(problem))
        else:
            self.dismiss(event.value)


class ViewerScreen(Screen[None]):
    """A screen with a title, a status line and something between them: `body()`. `place()` is the row that keys act
    on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("escape", "back", "Back; stops a search that runs", show=False),
        Binding("q", "app.quit", "Quit", show=False),
        Binding("n", "move(1)", "Next row", show=False),
        Binding("p", "move(-1)", "Previous row", show=False),
        Binding("r", "jump", "Jump to a request id", show=False),
        Binding("y", "copy_row", "Copy the row as JSON", show=False),
        Binding("i", "copy_id", "Copy its request id", show=False),
        Binding("e", "export", "Export the row as JSON", show=False),
    ]
    DEFAULT_CSS = """
    ViewerScreen .title {
        height: 1; background: $primary-background; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis;
    }
    ViewerScreen .status { height: auto; max-height: 2; color: $text-muted; }
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def compose(self) -> ComposeResult:
        yield Static(classes="title")
        yield from self.body()
        yield Static(classes="status")
        yield Footer()

    def body(self) -> ComposeResult:
        """The widgets between the title and the status line."""
        yield Table[Any]()

    @property
    def table(self) -> Table[Any]:
        """The first table of the screen."""
        return self.query(Table).first()

    def place(self) -> Place | None:
        """The row on which keys act."""
        raise NotImplementedError

    def open_places(self, places: list[Place], position: int, find: str = "") -> None:
        """Opens a row; n and p go through `places`."""
        from rollout.viewer.screens.row import RowScreen  # which is one of these

        self.app.push_screen(RowScreen(self.session, places, position, find=find))

    def start(self, work: Callable[[], Awaitable[None]], group: str, *, exclusive: bool = True) -> None:
        """Does something in the background; an exclusive one ends what its group does."""
        self.run_worker(self._while_shown(work), group=group, exclusive=exclusive)

    async def _while_shown(self, work: Callable[[], Awaitable[None]]) -> None:
        """A screen that is closed loses its widgets before its workers are cancelled: those that draw then just end."""
        try:
            await work()
        except NoMatches:
            if self.query(".title"):
                raise

    async def read_step(self, step: Step) -> None:
        """Reads a step to its end."""
        file = self.session.file(step)
        while not (state := await asyncio.to_thread(file.advance)).complete:
            self.status_line(f"reading step {step.label}: {100 * state.position // max(1, state.size)} %; esc leaves")

    def title_line(self, text: str) -> None:
        """Sets the first line."""
        self.query_one(".title", Static).update(Text(visible(text), end=""))

    def status_line(self, text: str | Text) -> None:
        """Sets the line above the keys."""
        self.query_one(".status", Static).update(text if isinstance(text, Text) else Text(visible(text), end=""))

    def tell(self, text: str, *, problem: bool = False) -> None:
        """A notice that goes away by itself."""
        self.notify(visible(text), severity="error" if problem else "information", timeout=5, markup=False)

    def ask(
        self,
        question: str,
        then: Callable[[str], None],
        *,
        value: str = "",
        check: Callable[[str], str] = lambda text: "",
    ) -> None:
        """Asks for a line, and does nothing when it is refused."""
        screen = PromptScreen(question, value, check)
        self.app.push_screen(screen, lambda answer: None if answer is None else then(answer))

    def action_help(self) -> None:
        if self.query(HelpPanel):
            self.app.action_hide_help_panel()
        else:
            self.app.action_show_help_panel()

    def action_back(self) -> None:
        if self.query(HelpPanel):
            self.app.action_hide_help_panel()
        elif len(self.app.screen_stack) > 2:  # the lowest one is Textual's own, then the rows
            self.dismiss(None)

    def action_move(self, rows: int) -> None:
        self.table.move_cursor(row=self.table.cursor_row + rows)

    def action_copy_row(self) -> None:
        place = self.place()
        if place is not None:
            self.start(partial(self._copy, place), "copy")

    def action_copy_id(self) -> None:
        place = self.place()
        if place is not None:
            self.app.copy_to_clipboard(place.row.request_id)
            self.tell(f"copied {place.row.request_id}" if place.row.request_id else "this row has no request id")

    def action_export(self) -> None:
        place = self.place()
        if place is not None:
            name = f"row-{place.step.label}-{place.row.line}.json"
            self.ask("export this row to", lambda path: self.export([place], path), value=name)

    def action_jump(self) -> None:
        question = "request id, or what it begins with"
        self.ask(question, self._start_jump, check=lambda text: query_problem(text, request_query))

    def export(self, places: list[Place], path: str) -> None:
        """Writes rows to a file, off the loop."""
        self.start(partial(self._export, places, Path(path.strip()).expanduser()), "export", exclusive=False)

    async def _export(self, places: list[Place], path: Path) -> None:
        try:
            size = await asyncio.to_thread(self.session.export, places, path)
            self.tell(f"{len(places)} rows, {size} bytes: {path}")
        except FairboxError as error:
            self.tell(str(error), problem=True)

    async def _copy(self, place: Place) -> None:
        if place.row.size > MAX_COPY_BYTES:
            self.tell(f"the row has {place.row.size} bytes, too many for a terminal's clipboard; e exports it")
            return
        line = await asyncio.to_thread(self.session.file(place.step).read_bytes, place.row)
        if isinstance(line, str):
            self.tell(line, problem=True)
        else:
            self.app.copy_to_clipboard(line.decode("utf-8", "replace"))
            self.tell(f"copied {len(line)} bytes")

    def _start_jump(self, wanted: str) -> None:
        self.start(partial(self._jump, wanted), "jump")

    async def _jump(self, wanted: str) -> None:
        looking = search(await asyncio.to_thread(self.session.folder.refresh), request_query(wanted))
        while (progress := await take(looking)) is not None:
            if progress.hits:
                self.open_places([Place(progress.hits[0].step, progress.hits[0].row)], 0)
                return
            self.status_line(f"looking for {wanted}: {progress.percent} % read; esc leaves")
        self.status_line(f"no row has a request id that begins with {wanted}")
