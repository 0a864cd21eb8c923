"""`python -m rollout`: the rollout tier as a service."""

from __future__ import annotations

from fairbox.net.service_process import prepare_service

if __name__ == "__main__":
    prepare_service()

# isort: split
import asyncio
import contextlib
import socket
import sys

from fairbox.loading import Interrupted
from fairbox.net.serving import run_service
from fairbox.telemetry.program import open_telemetry, peek_log_format
from rollout.envs.registry import load_run
from rollout.service.app import serve
from rollout.service.config import ServiceConfig


def main() -> int:
    """Entry point; returns the exit code."""

    async def program(stop: asyncio.Event) -> None:
        config, kind, settings = load_run(
            ServiceConfig,
            prefix="ROLLOUT",
            prog="python -m rollout",
            description="Plays trajectories for trainers, and keeps them until they are acknowledged.",
        )
        async with open_telemetry(config, service="rollout", instance=f"{socket.gethostname()}:{config.listen}"):
            with contextlib.suppress(Interrupted):  # told to end while it loads
                await serve(config, kind, settings, stop)

    peek_log_format("ROLLOUT")
    return run_service(program, name="rollout")


if __name__ == "__main__":
    sys.exit(main())
