"""`python -m benchmarks.limiter.clients ADDRESS CLIENTS`: a process that takes and gives back leases.

It has that many clients, each with a channel and a stream of its own, says READY, and goes on until its standard input
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from benchmarks.limiter.server import START_WITHIN_S
from limiter import LimiterClient


async def _load(address: str, clients: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(LimiterClient(address, unavailable_after=START_WITHIN_S))
            for _ in range(clients)
        ]

        async def loop(client: LimiterClient) -> None:
            while True:
                async with client.lease():
                    pass

        async with asyncio.TaskGroup() as tasks:
            loops = [tasks.create_task(loop(client)) for client in opened]
            print("READY", flush=True)
            await asyncio.to_thread(sys.stdin.read)
            for each in loops:
                each.cancel()


if __name__ == "__main__":
    asyncio.run(_load(sys.argv[1], int(sys.argv[2])))
