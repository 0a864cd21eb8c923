"""`fairbox status`: what limiter, executors and rollout services are doing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from fairbox.config import load, setting
from fairbox.errors import EXIT_FAILURE, ConfigError
from fairbox.net.serving import run_service, until_stopped
from rollout.stack import STARTS_SERVICES
from rollout.watch.status import as_tables, ask, is_complete, nothing_listens


@dataclass(frozen=True)
class Asked:
    """Settings of commands that ask services what they do."""

    limiter: str = setting("127.0.0.1:50053", help="Address of the limiter's admin service; empty: don't ask it.")
    executor: str = setting("127.0.0.1:50051", help="Addresses of executors, separated by commas; empty: ask none.")
    rollout: str = setting("", help="Addresses of rollout services, separated by commas; empty: ask none.")
    timeout_s: float = setting(5.0, least=0.1, most=600, help="The longest wait for each answer, seconds.")

    @property
    def executors(self) -> list[str]:
        """Addresses of executors, one by one."""
        return [part.strip() for part in self.executor.split(",") if part.strip()]

    @property
    def rollouts(self) -> list[str]:
        """Addresses of rollout services, one by one."""
        return [part.strip() for part in self.rollout.split(",") if part.strip()]

    def validate(self) -> None:
        """Raises ConfigError for what the types can't say."""
        if not self.limiter and not self.executors and not self.rollouts:
            raise ConfigError("limiter, executor and rollout are empty, so that there is nobody to ask")
        for name, addresses in (("executor", self.executors), ("rollout", self.rollouts)):
            if len(set(addresses)) != len(addresses):
                raise ConfigError(f"{name} is {getattr(self, name)!r}, which names one address twice")

    async def ask(self) -> dict[str, Any]:
        """The answers, as `rollout.watch.status.ask` gives them."""
        return await ask(self.limiter, self.executors, self.rollouts, timeout_s=self.timeout_s)


@dataclass(frozen=True)
class StatusConfig(Asked):
    """Settings of `fairbox status`."""

    json: bool = setting(False, help="One JSON object instead of lines to read.")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when everybody answered, 1 otherwise, 130 after Ctrl-C."""
    config = load(StatusConfig, prefix="FAIRBOX_STATUS", prog="fairbox status", description=__doc__ or "", argv=argv)
    complete = [True]

    async def show() -> None:
        found = await config.ask()
        complete[:] = [is_complete(found)]
        if config.json:
            print(json.dumps(found))
        else:
            Console().print(as_tables(found))
            if nothing_listens(found):
                print(f"fairbox status: {STARTS_SERVICES}", file=sys.stderr)

    async def serve(stop: asyncio.Event) -> None:
        await until_stopped(stop, show())

    try:
        code = run_service(serve, name="fairbox status")
        sys.stdout.flush()
    except BrokenPipeError:  # a reader that has seen enough (`| head`) is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code or (0 if complete[-1] else EXIT_FAILURE)
