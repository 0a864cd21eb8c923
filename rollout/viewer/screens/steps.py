"""The list of steps."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from rollout.viewer.columns import Column
from rollout.viewer.screens.base import ViewerScreen
from rollout.viewer.session import Place, Session
from rollout.viewer.steps import Step
from rollout.viewer.widgets.table import Table

__all__ = ["StepsScreen"]


@dataclass(frozen=True, slots=True)
class _Listed:
    step: Step
    bytes: int
    written: str


_COLUMNS: tuple[Column[_Listed], ...] = (
    Column("step", "step", 20, lambda listed: listed.step.label),
    Column("bytes", "bytes", 14, lambda listed: str(listed.bytes)),
    Column("written", "last written", 20, lambda listed: listed.written, right=False),
)


class StepsScreen(ViewerScreen):
    """Calls `chosen` with the step on which Enter is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "back", "Close", show=False)]

    def __init__(self, session: Session, current: Step | None, chosen: Callable[[Step], None]) -> None:
        super().__init__(session)
        self._current = current
        self._chosen = chosen

    def compose(self) -> ComposeResult:
        yield Static(classes="title")
        yield Table[_Listed](id="steps")
        yield Static(classes="status")
        yield Footer()

    def on_mount(self) -> None:
        self.start(self._load, "steps")

    def place(self) -> Place | None:
        return None

    def on_table_opened(self) -> None:
        listed = self.query_one("#steps", Table).current
        if listed is not None:
            self._chosen(listed.step)
            self.dismiss(None)

    async def _load(self) -> None:
        listed = await asyncio.to_thread(lambda: [_look(step) for step in self.session.folder.refresh()])
        table: Table[_Listed] = self.query_one("#steps", Table)
        cursor = next((i for i, each in enumerate(listed) if each.step == self._current), 0)
        table.show(_COLUMNS, listed, cursor=cursor)
        table.focus()
        self.title_line(f"{self.session.folder.path}  {len(listed)} steps")
        self.status_line("enter opens, esc leaves")


def _look(step: Step) -> _Listed:
    try:
        status = step.path.stat()
    except OSError:
        return _Listed(step, 0, "gone")
    written = datetime.datetime.fromtimestamp(status.st_mtime).astimezone()
    return _Listed(step, status.st_size, written.strftime("%Y-%m-%d %H:%M:%S"))
