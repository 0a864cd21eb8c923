"""Base of every screen: notices, questions, copying, exporting.

Invariant: nothing here reads a file on the loop that draws; what takes longer runs in a thread, a slice at a time, and
is cancelled when it is superseded or its screen is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, HelpPanel, Input, Static

from fairbox.errors import FairboxError
from rollout.viewer.rows.columns import visible
from rollout.viewer.rows.index import DumpFolder, read_bytes
from rollout.viewer.rows.summary import RowSummary
from rollout.viewer.widgets.table import Table

_SAME = {"j": "down", "k": "up", "h": "left", "l": "right", "g": "home", "G": "end"}
_SAME |= {"ctrl+b": "pageup", "ctrl+f": "pagedown"}
"""Keys that do what others do."""


@dataclass(frozen=True)
class Session:
    """Objects that the screens of one viewer share."""

    folder: DumpFolder
    tokenizer: str | None = None
    """The setting."""


class PromptScreen(ModalScreen[str | None]):
    """Asks for one line at the foot of the screen. `check` raises FairboxError if it is wrong. Esc gives None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]
    DEFAULT_CSS = """
    PromptScreen { align: left bottom; background: $background 40%; }
    PromptScreen Vertical { height: auto; background: $panel; border-top: solid $accent; }
    PromptScreen #problem { color: $error; }
    """

    def __init__(self, question: str, value: str = "", check: Callable[[str], object] = str) -> None:
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
        try:
            self._check(event.value)
        except FairboxError as error:
            self.query_one("#problem", Static).update(Text(visible(str(error))))
        else:
            self.dismiss(event.value)


class ViewerScreen(Screen[None]):
    """A screen with a title, a status line and something between them: `body()`. Its widgets are attributes, so that a
    worker that is cancelled after its screen was closed still finds them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "app.show_help_panel", "Help", key_display="?"),
        Binding("escape", "back", "Back; stops a search that runs", show=False),
        Binding("q", "app.quit", "Quit", show=False),
        Binding("i", "copy_id", "Copy the row's request id", show=False),
        Binding("e", "export", "Export the row as JSON", show=False),
        *(Binding(key, f"app.simulate_key('{same}')", same, show=False) for key, same in _SAME.items()),
    ]
    DEFAULT_CSS = """
    ViewerScreen .title {
        height: 1; background: $primary-background; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis;
    }
    ViewerScreen .status { height: auto; max-height: 2; color: $text-muted; }
    """

    def __init__(
        self,
        session: Session,
        style_of: Callable[[Any], str] = lambda item: "",
        row_of: Callable[[Any], RowSummary | None] = lambda item: item,
    ) -> None:
        super().__init__()
        self.session = session
        self._row_of = row_of
        self.table = Table[Any](style_of)
        self._title_line = Static(classes="title")
        self._status_line = Static(classes="status")

    def compose(self) -> ComposeResult:
        yield self._title_line
        yield from self.body()
        yield self._status_line
        yield Footer()

    def body(self) -> ComposeResult:
        """The widgets between the title and the status line."""
        yield self.table

    def row(self) -> RowSummary | None:
        """The row that keys act on."""
        return None if self.table.current is None else self._row_of(self.table.current)

    def open_rows(self, rows: Sequence[RowSummary], position: int, find: str = "") -> None:
        """Opens a row; n and p go through `rows`."""
        from rollout.viewer.screens.row import RowScreen  # which is one of these

        self.app.push_screen(RowScreen(self.session, rows, position, find=find))

    async def read_step(self, step: Path) -> Sequence[RowSummary]:
        """The rows of a step, read to its end."""
        file = self.session.folder.open(step)
        while not await asyncio.to_thread(file.advance):
            self.status_line(f"reading step {step.stem}: {file.percent} %; esc leaves")
        return file.rows

    def title_line(self, text: str) -> None:
        """Sets the first line."""
        self._title_line.update(Text(visible(text), end=""))

    def status_line(self, text: str | Text) -> None:
        """Sets the line above the keys."""
        self._status_line.update(text if isinstance(text, Text) else Text(visible(text), end=""))

    def tell(self, text: str, *, problem: bool = False) -> None:
        """A notice that goes away by itself."""
        self.notify(visible(text), severity="error" if problem else "information", timeout=5, markup=False)

    def action_back(self) -> None:
        if self.query(HelpPanel):
            self.app.action_hide_help_panel()
        elif len(self.app.screen_stack) > 2:  # the lowest one is Textual's own, then the rows
            self.dismiss(None)

    def action_copy_id(self) -> None:
        if (row := self.row()) is not None:
            self.app.copy_to_clipboard(row.request_id)
            self.tell(f"copied {row.request_id}" if row.request_id else "this row has no request id")

    def action_export(self) -> None:
        if (row := self.row()) is not None:
            self.export([row], "this row", f"row-{row.path.stem}-{row.line}.json")

    @work
    async def export(self, rows: Sequence[RowSummary], what: str, name: str) -> None:
        """Asks for a file, and writes rows to it."""
        path = await self.app.push_screen_wait(PromptScreen(f"export {what} to", name))
        try:
            if path is not None:
                self.tell(await asyncio.to_thread(_write, rows, path.strip()))
        except FairboxError as error:
            self.tell(str(error), problem=True)


def _write(rows: Sequence[RowSummary], name: str) -> str:
    """Writes the rows' lines as they stand in the dump; what was written. Raises FairboxError; a file that is there
    already stays as it is."""
    written = 0
    try:
        path = Path(name).expanduser()
        with path.open("xb") as file:
            for row in rows:
                line = read_bytes(row)
                if isinstance(line, str):
                    raise FairboxError(f"{row.path}:{row.line}: {line}")
                written += file.write(line + b"\n")
    except FileExistsError:
        raise FairboxError(f"{path} exists, and is not overwritten") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a home of a user who is not known
        raise FairboxError(f"{name} can't be written: {getattr(error, 'strerror', None) or error}") from None
    return f"{len(rows)} rows, {written} bytes: {path}"
