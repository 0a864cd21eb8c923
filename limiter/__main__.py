"""`python -m limiter`: the limiter's server."""

from __future__ import annotations

from fairbox.net.service_process import prepare_service

if __name__ == "__main__":
    prepare_service()

# isort: split
import asyncio
import socket
import sys

from fairbox.config import config_files, load
from fairbox.net.serving import run_service
from fairbox.telemetry.program import open_telemetry, peek_log_format
from limiter.config import LimiterConfig
from limiter.server.app import serve
from limiter.server.reload import Reload


def main() -> int:
    """Entry point; returns the exit code."""

    def read() -> LimiterConfig:
        return load(
            LimiterConfig,
            prefix="LIMITER",
            prog="python -m limiter",
            description="Grants tokens, cluster-wide, first in, first out.",
        )

    async def program(stop: asyncio.Event) -> None:
        config = read()
        async with open_telemetry(config, service="limiter", instance=f"{socket.gethostname()}:{config.listen}"):
            await serve(config, stop, reload=Reload(config, read, config_files(LimiterConfig)))

    peek_log_format("LIMITER")
    return run_service(program, name="limiter")


if __name__ == "__main__":
    sys.exit(main())
