"""`fairbox up`: limiter and executor on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fairbox.config import load, setting
from fairbox.errors import FairboxError
from fairbox.serving import run_service
from rollout.stack import LocalStack, StackPorts

__all__ = ["UpConfig", "main"]

_WATCH_S = 0.2


@dataclass(frozen=True)
class UpConfig:
    """Settings of `fairbox up`; everything else is set on the services themselves."""

    max_in_flight: int = setting(10, help="Most programs in flight at once, over all clients; from 1.")
    limiter: str = setting("127.0.0.1:50052", help="Address that the limiter listens on.")
    limiter_admin: str = setting("127.0.0.1:50053", help="Address of its admin service.")
    limiter_health: str = setting("127.0.0.1:50062", help="Address of its health service.")
    executor: str = setting("127.0.0.1:50051", help="Address that the executor listens on.")
    executor_health: str = setting("127.0.0.1:50061", help="Address of its health service.")


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    config = load(UpConfig, prefix="FAIRBOX_UP", prog="fairbox up", description=__doc__ or "", argv=argv)
    ports = StackPorts(
        limiter=config.limiter,
        limiter_admin=config.limiter_admin,
        limiter_health=config.limiter_health,
        executor=config.executor,
        executor_health=config.executor_health,
    )

    async def serve(stop: asyncio.Event) -> None:
        stack = LocalStack(ports, limiter_args=[f"buckets.code.max_in_flight={config.max_in_flight}"])
        async with stack:
            print(f"limiter on {ports.limiter}, executor on {ports.executor}; Ctrl-C ends both", file=sys.stderr)
            while not stop.is_set():
                if (ended := stack.ended()) is not None:
                    raise FairboxError(ended)
                try:
                    await asyncio.wait_for(stop.wait(), _WATCH_S)
                except TimeoutError:
                    continue

    return run_service(serve, name="fairbox up")
