"""`fairbox up`: limiter and executor on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fairbox.config import load, setting
from fairbox.errors import FairboxError
from fairbox.serving import run_service
from fairbox.telemetry import TelemetrySettings
from rollout.stack import LocalStack, StackPorts

_WATCH_S = 0.2


@dataclass(frozen=True)
class UpConfig(TelemetrySettings):
    """Settings of `fairbox up`; everything else is set on the services themselves."""

    log_level: str = setting("warning", help="Least level that is logged: debug, info, warning or error.")
    max_in_flight: int = setting(10, least=1, help="Most programs in flight at once, over all clients.")
    limiter: str = setting("127.0.0.1:50052", help="Address that the limiter listens on.")
    limiter_admin: str = setting("127.0.0.1:50053", help="Address of its admin service.")
    limiter_health: str = setting("127.0.0.1:50062", help="Address of its health service.")
    executor: str = setting("127.0.0.1:50051", help="Address that the executor listens on.")
    executor_health: str = setting("127.0.0.1:50061", help="Address of its health service.")
    limiter_metrics: str = setting("", help="Address of its figures for Prometheus, e.g. 127.0.0.1:9465; empty: none.")
    executor_metrics: str = setting("", help="Address of its figures for Prometheus, e.g. 127.0.0.1:9464; empty: none.")

    def validate(self) -> None:
        """ConfigError naming the setting that is wrong."""
        self.validate_telemetry()


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
        both = [*config.words(), f"log_level={config.log_level}"]
        stack = LocalStack(
            ports,
            limiter_args=[
                f"buckets.code.max_in_flight={config.max_in_flight}",
                f"metrics_listen={config.limiter_metrics}",
                *both,
            ],
            executor_args=[f"metrics_listen={config.executor_metrics}", *both],
        )
        async with stack:
            print(f"limiter on {ports.limiter}, executor on {ports.executor}; Ctrl-C ends both", file=sys.stderr)
            if stack.no_scope:
                print(f"systemd gives the executor no control group of its own: {stack.no_scope}", file=sys.stderr)
            while not stop.is_set():
                if (ended := stack.ended()) is not None:
                    raise FairboxError(ended)
                try:
                    await asyncio.wait_for(stop.wait(), _WATCH_S)
                except TimeoutError:
                    continue

    return run_service(serve, name="fairbox up")
