"""`python -m limiter`: the limiter's server."""

from __future__ import annotations

import asyncio
import logging
import sys

from fairbox.config import load
from fairbox.serving import run_service
from limiter.config import LimiterConfig
from limiter.server.app import serve


def main() -> int:
    """Entry point; returns the exit code."""

    async def program(stop: asyncio.Event) -> None:
        config = load(
            LimiterConfig,
            prefix="LIMITER",
            prog="python -m limiter",
            description="Grants tokens, cluster-wide, first in, first out.",
        )
        await serve(config, stop)

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    return run_service(program, name="limiter")


if __name__ == "__main__":
    sys.exit(main())
