"""`python -m executor_service`: the executor's server."""

from __future__ import annotations

import asyncio
import logging
import sys

from executor_service.config import ExecutorConfig
from executor_service.server.app import serve
from fairbox.config import load
from fairbox.serving import run_service


def main() -> int:
    """Entry point; returns the exit code."""

    async def program(stop: asyncio.Event) -> None:
        config = load(
            ExecutorConfig,
            prefix="EXECUTOR",
            prog="python -m executor_service",
            description="Runs untrusted programs in isolation and says what became of them.",
        )
        await serve(config, stop)

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    return run_service(program, name="executor")


if __name__ == "__main__":
    sys.exit(main())
