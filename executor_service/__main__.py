"""`python -m executor_service`: the executor's server."""

from __future__ import annotations

from fairbox.net.service_process import prepare_service

if __name__ == "__main__":
    prepare_service()

# isort: split
import asyncio
import socket
import sys

from executor_service.app import serve
from executor_service.config import ExecutorConfig
from fairbox.config import load
from fairbox.net.serving import run_service
from fairbox.telemetry.program import open_telemetry, peek_log_format


def main() -> int:
    """Entry point; returns the exit code."""

    async def program(stop: asyncio.Event) -> None:
        config = load(
            ExecutorConfig,
            prefix="EXECUTOR",
            prog="python -m executor_service",
            description="Runs untrusted programs in isolation and says what became of them.",
        )
        instance = config.name or f"{socket.gethostname()}:{config.listen.rpartition(':')[2]}"
        async with open_telemetry(config, service="executor", instance=instance):
            await serve(config, stop)

    peek_log_format("EXECUTOR")
    return run_service(program, name="executor")


if __name__ == "__main__":
    sys.exit(main())
