"""Drives the program as a person does: presses keys, waits for what is on the screen."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

from rollout.viewer.app import ViewerApp
from rollout.viewer.rows.index import DumpFolder
from rollout.viewer.screens.base import PromptScreen, Session

DEADLINE_S = 60.0
T = TypeVar("T", bound=Screen[Any])


class Driver:
    """Presses keys and reads the screen."""

    def __init__(self, app: ViewerApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def screen(self) -> Any:
        return self.app.screen

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for what a worker does."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, self.text()
            await self.pilot.pause(0.02)

    async def shown(self, kind: type[T]) -> T:
        await self.until(lambda: isinstance(self.screen, kind) and self.screen.is_mounted)
        assert isinstance(self.screen, kind)
        return self.screen

    async def answer(self, text: str) -> None:
        """Types into the dialog that is open."""
        prompt = await self.shown(PromptScreen)
        prompt.query_one(Input).value = text
        await self.press("enter")

    def lines(self) -> list[str]:
        return ["".join(segment.text for segment in strip) for strip in self.app.screen._compositor.render_strips()]

    def text(self) -> str:
        return "\n".join(self.lines())

    def row_lines(self) -> list[int]:
        """Lines of the file in the order in which they are shown."""
        return [row.line for row in self.app.rows.table.items]

    async def says(self, text: str) -> None:
        """Waits for a text, wherever the screen breaks it."""
        await self.until(lambda: " ".join(text.split()) in " ".join(self.text().split()))


@asynccontextmanager
async def viewer(path: Path, *, size: tuple[int, int] = (80, 24), **options: Any) -> AsyncIterator[Driver]:
    session = Session(DumpFolder(path), options.pop("tokenizer", None))
    step = session.folder.named(options.pop("step")) if "step" in options else None
    app = ViewerApp(session, step=step, **options)
    async with app.run_test(size=size, notifications=True) as pilot:
        driver = Driver(app, pilot)
        await driver.until(lambda: app.rows.complete or not session.folder.steps)
        await pilot.pause()  # and until it is laid out
        yield driver
