"""Ten thousand that wait on one stream: what each costs the server, whether they are served in order, and how soon one
that gives up is out of the queue."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time

from benchmarks.limiter_server import Server, running
from benchmarks.rows import Row, figure, resident_kib
from limiter import LimiterClient, UnknownBucket

__all__ = ["rows"]

_WAITERS = 10_000
_CANCELLED = range(100, 9_900, 7)
"""Numbers of those who give up, over all of the queue."""
_MOST_KIB = 1.0
_MOST_CANCEL_MS = 50.0
_PAUSE_S = 0.002
"""Between two who give up: what one waits for is then not the one before."""


async def rows() -> list[Row]:
    """One queue, filled, thinned out and served."""
    order: list[int] = []
    async with (
        running("buckets.code.max_queued_per_client=20000", "buckets.code.start_by_s=600") as server,
        LimiterClient(server.address, unavailable_after=30) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(10):
            await stack.enter_async_context(client.lease())
        before = resident_kib(server.pid)

        async def wait(number: int) -> None:
            async with client.lease(queue_timeout=600):
                order.append(number)

        waiters = [asyncio.create_task(wait(number)) for number in range(_WAITERS)]
        await _queued(server, _WAITERS)
        grown = (resident_kib(server.pid) - before) / _WAITERS
        times = [await _cancel(client, waiters[number]) for number in _CANCELLED]
        await _queued(server, _WAITERS - len(_CANCELLED))
        await stack.aclose()
        await asyncio.gather(*waiters, return_exceptions=True)
    wrong = sum(1 for earlier, later in itertools.pairwise(order) if earlier > later)
    missing = _WAITERS - len(_CANCELLED) - len(order)
    quantiles = statistics.quantiles(times, n=100)
    return [
        figure(f"{_WAITERS} waiting: server memory each", grown, "KiB", most=_MOST_KIB),
        figure(f"{_WAITERS} waiting: grants out of order", wrong, "", most=0),
        figure(f"{_WAITERS} waiting: without a grant", missing, "", most=0),
        figure(f"{_WAITERS} waiting: cancel until dropped, p50", quantiles[49], "ms"),
        figure(f"{_WAITERS} waiting: cancel until dropped, p99", quantiles[98], "ms", most=_MOST_CANCEL_MS),
    ]


async def _queued(server: Server, count: int) -> None:
    async with asyncio.timeout(60):
        while (await server.bucket()).queued != count:
            await asyncio.sleep(0.05)


async def _cancel(client: LimiterClient, waiter: asyncio.Task[None]) -> float:
    """Milliseconds until the server has surely dropped it: the answer to what was sent after the cancel is here."""
    await asyncio.sleep(_PAUSE_S)
    began = time.perf_counter()
    waiter.cancel()
    await asyncio.wait([waiter])
    with contextlib.suppress(UnknownBucket):
        async with client.lease("nowhere"):
            pass
    return (time.perf_counter() - began) * 1e3
