"""`fairbox status`: what limiter and executors are doing, once or again and again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live

from fairbox.config import load, setting
from fairbox.errors import EXIT_FAILURE, ConfigError
from fairbox.serving import run_service
from rollout.status.client import Status, StatusClient
from rollout.status.view import as_data, as_tables

__all__ = ["StatusConfig", "main"]


@dataclass(frozen=True)
class StatusConfig:
    """Settings of `fairbox status`."""

    limiter: str = setting("127.0.0.1:50053", help="Address of the limiter's admin service; empty: don't ask it.")
    executor: str = setting("127.0.0.1:50051", help="Addresses of executors, separated by commas; empty: ask none.")
    watch: float = setting(0.0, help="Show it again every so many seconds, from 0.1, until Ctrl-C; 0: once.")
    json: bool = setting(False, help="One JSON object a line instead of tables.")
    timeout_s: float = setting(5.0, least=0.1, most=600, help="The longest wait for each answer, seconds.")

    @property
    def executors(self) -> list[str]:
        """The addresses one by one."""
        return [part.strip() for part in self.executor.split(",") if part.strip()]

    def validate(self) -> None:
        """Raises ConfigError for what the types can't say."""
        if self.watch != 0 and not (math.isfinite(self.watch) and 0.1 <= self.watch <= 86_400):
            raise ConfigError(f"watch is {self.watch}, must be 0 or from 0.1 to 86400")
        if not self.limiter and not self.executors:
            raise ConfigError("limiter and executor are both empty, so that there is nobody to ask")
        if len(set(self.executors)) != len(self.executors):
            raise ConfigError(f"executor is {self.executor!r}, which names one address twice")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when everybody answered, 1 otherwise, 130 after Ctrl-C."""
    config = load(StatusConfig, prefix="FAIRBOX_STATUS", prog="fairbox status", description=__doc__ or "", argv=argv)
    complete = [True]

    async def serve(stop: asyncio.Event) -> None:
        async with StatusClient(config.limiter, config.executors, timeout_s=config.timeout_s) as client:
            with _output(config) as show:
                await _show(client, config.watch, stop, show, complete)

    try:
        code = run_service(serve, name="fairbox status")
        sys.stdout.flush()
    except BrokenPipeError:  # a reader that has seen enough (`| head`) is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code or (0 if complete[-1] else EXIT_FAILURE)


async def _show(
    client: StatusClient, watch: float, stop: asyncio.Event, show: Callable[[Status], None], complete: list[bool]
) -> None:
    stopped = asyncio.ensure_future(stop.wait())
    try:
        while True:
            asked = asyncio.ensure_future(client.ask())
            try:
                await asyncio.wait([asked, stopped], return_when=asyncio.FIRST_COMPLETED)
                if not asked.done():
                    return
            finally:
                asked.cancel()
                await asyncio.wait([asked])
            show(asked.result())
            complete[:] = [asked.result().complete]
            if not watch or stopped.done():
                return
            await asyncio.wait([stopped], timeout=watch)
    finally:
        stopped.cancel()
        await asyncio.wait([stopped])


@contextlib.contextmanager
def _output(config: StatusConfig) -> Iterator[Callable[[Status], None]]:
    """How one status is shown: as JSON, as tables below each other, or in place on a terminal."""
    console = Console()
    if config.json:
        yield lambda status: print(json.dumps(as_data(status)), flush=True)
    elif config.watch and console.is_terminal:
        with Live(console=console, auto_refresh=False, screen=False, vertical_overflow="crop") as live:
            yield lambda status: live.update(as_tables(status), refresh=True)
    else:
        yield lambda status: console.print(as_tables(status))
