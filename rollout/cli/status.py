"""`fairbox status`: what limiter and executors are doing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from fairbox.config import load, setting
from fairbox.errors import EXIT_FAILURE, ConfigError
from fairbox.net.serving import run_service
from rollout.stack import STARTS_SERVICES
from rollout.status import as_tables, ask, is_complete, nothing_listens


@dataclass(frozen=True)
class StatusConfig:
    """Settings of `fairbox status`."""

    limiter: str = setting("127.0.0.1:50053", help="Address of the limiter's admin service; empty: don't ask it.")
    executor: str = setting("127.0.0.1:50051", help="Addresses of executors, separated by commas; empty: ask none.")
    json: bool = setting(False, help="One JSON object instead of lines to read.")
    timeout_s: float = setting(5.0, least=0.1, most=600, help="The longest wait for each answer, seconds.")

    @property
    def executors(self) -> list[str]:
        """The addresses one by one."""
        return [part.strip() for part in self.executor.split(",") if part.strip()]

    def validate(self) -> None:
        """Raises ConfigError for what the types can't say."""
        if not self.limiter and not self.executors:
            raise ConfigError("limiter and executor are both empty, so that there is nobody to ask")
        if len(set(self.executors)) != len(self.executors):
            raise ConfigError(f"executor is {self.executor!r}, which names one address twice")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when everybody answered, 1 otherwise, 130 after Ctrl-C."""
    config = load(StatusConfig, prefix="FAIRBOX_STATUS", prog="fairbox status", description=__doc__ or "", argv=argv)
    complete = [True]

    async def serve(stop: asyncio.Event) -> None:
        asked = asyncio.ensure_future(ask(config.limiter, config.executors, timeout_s=config.timeout_s))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait([asked, stopped], return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            complete[:] = [is_complete(asked.result())]
            if config.json:
                print(json.dumps(asked.result()))
            else:
                Console().print(as_tables(asked.result()))
                if nothing_listens(asked.result()):
                    print(f"fairbox status: {STARTS_SERVICES}", file=sys.stderr)
        for task in (asked, stopped):
            task.cancel()
        await asyncio.wait([asked, stopped])

    try:
        code = run_service(serve, name="fairbox status")
        sys.stdout.flush()
    except BrokenPipeError:  # a reader that has seen enough (`| head`) is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code or (0 if complete[-1] else EXIT_FAILURE)
