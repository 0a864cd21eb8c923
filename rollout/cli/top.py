"""`fairbox top`: what limiter, executors, rollout services and a training run are doing, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from fairbox.clock import MonotonicClock
from fairbox.config import load, setting
from fairbox.errors import ConfigError
from fairbox.net.serving import run_service, until_stopped
from rollout.cli.status import Asked
from rollout.viewer.rows.index import TRAINING
from rollout.watch.top import Moment, screen

_TAIL_BYTES = 1 << 16
"""Enough for a line of figures."""


@dataclass(frozen=True)
class TopConfig(Asked):
    """Settings of `fairbox top`."""

    run: str = setting("", help="Folder of a training run, whose last step is shown; empty: none.")
    every_s: float = setting(2.0, least=0.1, most=3600, help="Between two looks, seconds.")
    looks: int = setting(0, least=0, help="Ends after so many; 0: with Ctrl-C.")

    def validate(self) -> None:
        """Raises ConfigError for what the types can't say."""
        super().validate()
        if self.run and not Path(self.run).expanduser().is_dir():
            raise ConfigError(f"run is {self.run!r}, which is no folder")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 after the last look, 130 after Ctrl-C."""
    config = load(TopConfig, prefix="FAIRBOX_TOP", prog="fairbox top", description=__doc__ or "", argv=argv)
    console = Console()

    async def show() -> None:
        before: Moment | None = None
        clock, looks = MonotonicClock(), 0
        # On a terminal one screen that changes; anything else gets one after the other.
        with Live(console=console, screen=console.is_terminal, auto_refresh=False, transient=True) as live:
            while True:
                step = await asyncio.to_thread(last_step, config.run) if config.run else {}
                now = Moment(clock.now(), await config.ask(), step)
                if console.is_terminal:
                    live.update(screen(now, before), refresh=True)
                else:
                    console.print(screen(now, before))
                before, looks = now, looks + 1
                if looks == config.looks:
                    return
                await asyncio.sleep(config.every_s)

    async def serve(stop: asyncio.Event) -> None:
        await until_stopped(stop, show())

    return run_service(serve, name="fairbox top")


def last_step(run: str) -> dict[str, Any]:
    """Figures of the last whole line of a run's metrics; empty: there is none that can be read."""
    try:
        with (Path(run).expanduser() / TRAINING).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            *lines, _ = file.read().split(b"\n")
        found = json.loads(lines[-1]) if lines else {}
    except (OSError, ValueError):  # the file is not there, or is another program's
        return {}
    return found if isinstance(found, dict) else {}
