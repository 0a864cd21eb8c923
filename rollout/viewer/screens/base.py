"""What every screen can do: notices, dialogs, copying, exporting, jumping to a request id.

Invariant: nothing here reads a file on the loop that draws; what takes longer runs in a thread, a slice at a time, and
is cancelled when it is superseded or its screen is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import Static

from fairbox.errors import FairboxError
from rollout.viewer.columns import visible
from rollout.viewer.facts import RowFacts
from rollout.viewer.lookup import find_request
from rollout.viewer.screens.dialogs import HelpScreen, PromptScreen
from rollout.viewer.session import Place, Session
from rollout.viewer.steps import Step

__all__ = ["ViewerScreen", "take"]

T = TypeVar("T")

MAX_COPY_BYTES = 74_000
"""What terminals take as one clipboard sequence; larger rows are exported."""


async def take(iterator: Iterator[T]) -> T | None:
    """The next item, computed in a thread; None at the end."""
    return await asyncio.to_thread(next, iterator, None)


class ViewerScreen(Screen[None]):
    """A screen with a title and a status line. Subclasses say which rows keys act on: `places()` and `position`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("escape", "back", "Back", show=False),
        Binding("q", "app.quit", "Quit", show=False),
        Binding("r", "jump", "Jump", show=False),
        Binding("y", "copy_row", "Copy", show=False),
        Binding("i", "copy_id", "Copy id", show=False),
        Binding("e", "export", "Export", show=False),
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

    def title_line(self, text: str | Text) -> None:
        """Sets the first line."""
        self.query_one(".title", Static).update(text if isinstance(text, Text) else Text(visible(text), end=""))

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
        hint: str = "",
    ) -> None:
        """Asks for a line, and does nothing when it is refused."""
        screen = PromptScreen(question, value, check=check, hint=hint)
        self.app.push_screen(screen, lambda answer: None if answer is None else then(answer))

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen())

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 2:  # the lowest one is Textual's own, then the rows
            self.dismiss(None)

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
            self.ask("export this row to", lambda path: self.export([place], path), value=name, check=_no_file)

    def action_jump(self) -> None:
        self.ask(
            "request id, or what it begins with",
            lambda wanted: self._start_jump(wanted),
            check=lambda text: "" if text.strip(" -") else "there is nothing to look for",
        )

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
        steps = await asyncio.to_thread(self.session.folder.refresh)
        found: Step | tuple[Step, RowFacts] | None
        looking = find_request(steps, wanted)
        while (found := await take(looking)) is not None:
            if isinstance(found, tuple):
                self.open_places([Place(*found)], 0)
                return
            self.status_line(f"looking for {wanted} in step {found.label}; esc leaves")
        self.status_line(f"no row has a request id that begins with {wanted}")


def _no_file(text: str) -> str:
    path = Path(text.strip()).expanduser()
    if not text.strip():
        return "a file is needed"
    return f"{path} exists, and is not overwritten" if path.exists() else ""
