"""The viewer's program: `ViewerApp(session).run()`. Needs Textual."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from rollout.viewer.screens.rows import RowsScreen
from rollout.viewer.session import Session

__all__ = ["ViewerApp"]


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

    def __init__(self, session: Session, *, filter: str = "", step: str | None = None, follow: bool = False) -> None:
        super().__init__()
        self.rows = RowsScreen(session, filter=filter, step=step, follow=follow)
        """The first screen."""

    def on_mount(self) -> None:
        self.push_screen(self.rows)
