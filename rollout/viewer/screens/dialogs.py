"""Dialogs: a line to type in, and the help."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.table import Table as RichTable
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from rollout.viewer.fields import FIELDS
from rollout.viewer.keys import FILTER_HELP, KEYS

__all__ = ["HelpScreen", "PromptScreen"]


class PromptScreen(ModalScreen[str | None]):
    """Asks for one line at the foot of the screen. `check` says what is wrong with it, or nothing. Esc gives None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]
    DEFAULT_CSS = """
    PromptScreen { align: left bottom; background: $background 40%; }
    PromptScreen Vertical { height: auto; background: $panel; border-top: solid $accent; }
    PromptScreen Input { padding: 0 1; }
    PromptScreen Static { height: auto; padding: 0 1; }
    PromptScreen #problem { color: $error; padding: 0; }
    """

    def __init__(
        self, question: str, value: str = "", *, check: Callable[[str], str] = lambda text: "", hint: str = ""
    ) -> None:
        super().__init__()
        self._question = question
        self._value = value
        self._check = check
        self._hint = hint

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(self._question, style="bold"), id="question")
            if self._hint:
                yield Static(Text(self._hint, style="dim"), id="hint")
            yield Input(self._value, id="line", compact=True)
            yield Static("", id="problem")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        problem = self._check(event.value)
        if problem:
            self.query_one("#problem", Static).update(Text(problem))
        else:
            self.dismiss(event.value)

    def action_cancel(self) -> None:
        self.dismiss(None)


class HelpScreen(ModalScreen[None]):
    """All keys, and how filters are written."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "close", "Close")]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen VerticalScroll { width: 78; height: 90%; background: $panel; border: round $accent; padding: 0 1; }
    """

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(_help())

    def action_close(self) -> None:
        self.dismiss(None)


def _help() -> RichTable:
    table = RichTable.grid(padding=(0, 2))
    table.add_column(width=10)
    table.add_column()
    for title, keys in KEYS:
        table.add_row("", Text(title, style="bold underline"))
        for key, text in keys:
            table.add_row(Text(key, style="bold"), Text(text))
    table.add_row("", Text("filters", style="bold underline"))
    table.add_row("", Text(FILTER_HELP))
    for field in FIELDS.values():
        table.add_row("", Text.assemble((field.name, "bold"), f"  {field.help}"))
    return table
