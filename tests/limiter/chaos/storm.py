"""Requests whose callers lose patience, in every way that a caller can: what is left of them must be nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from fairbox.net.channels import open_channel
from limiter import LimiterClient
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc
from tests.limiter.servers import unary_lease

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterServiceAsyncStub

_PATIENCE_S = 0.03
"""Mean; about what a grant takes in the storm, so that many grants and cancels meet on the way."""
_HOLD_S = 0.001
_AT_ONCE = {"stream": 100, "unary": 16}
"""Callers at once, so that about every other request is granted: unary calls cost far more each."""

STREAM = ("stream, cancelled", "stream, wait_for")
UNARY = ("unary, cancelled", "unary, wait_for", "unary, deadline of the call")

Ask = Callable[[float], Awaitable[None]]


@dataclass
class Tally:
    """Counts of the requests by their end."""

    granted: int = 0
    given_up: int = 0


async def storm(address: str, count: int, ways: tuple[str, ...], seed: int) -> Tally:
    """Asks `count` times, each caller with a patience of its own."""
    rng, tally = random.Random(seed), Tally()
    async with (
        LimiterClient(address) as stream,
        open_channel(address) as channel,
    ):
        stub = cast("LimiterServiceAsyncStub", limiter_pb2_grpc.LimiterServiceStub(channel))

        async def hold_stream() -> None:
            async with stream.lease():
                await asyncio.sleep(_HOLD_S)

        async def hold_unary(timeout: float | None = None) -> None:
            async with unary_lease(stub, pb.AcquireTokenRequest(), timeout=timeout):
                await asyncio.sleep(_HOLD_S)

        asks: dict[str, Ask] = {
            "stream, cancelled": lambda patience: _cancelled(hold_stream(), patience),
            "stream, wait_for": lambda patience: asyncio.wait_for(hold_stream(), patience),
            "unary, cancelled": lambda patience: _cancelled(hold_unary(), patience),
            "unary, wait_for": lambda patience: asyncio.wait_for(hold_unary(), patience),
            "unary, deadline of the call": hold_unary,
        }
        left = iter(range(count))

        async def caller() -> None:
            for number in left:
                try:
                    await asks[ways[number % len(ways)]](rng.expovariate(1 / _PATIENCE_S))
                    tally.granted += 1
                except (TimeoutError, asyncio.CancelledError):
                    tally.given_up += 1

        async with asyncio.TaskGroup() as callers:
            for _ in range(min(_AT_ONCE[way.split(",")[0]] for way in ways)):
                callers.create_task(caller())
    return tally


async def _cancelled(work: Awaitable[None], patience: float) -> None:
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().call_later(patience, task.cancel)
    await asyncio.wait([task])
    await task
