"""Requests whose callers lose patience, in every way that a caller can: what is left of them must be nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import grpc.aio

from fairbox.channels import open_channel
from limiter import LimiterClient
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc
from tests.limiter.unary_client import UnaryLimiterClient

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterServiceAsyncStub

__all__ = ["STREAM", "UNARY", "Tally", "storm"]

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
    """How the requests ended."""

    granted: int = 0
    given_up: int = 0


async def storm(address: str, count: int, ways: tuple[str, ...], seed: int) -> Tally:
    """Asks `count` times, each caller with a patience of its own."""
    rng, tally = random.Random(seed), Tally()
    async with (
        LimiterClient(address) as stream,
        UnaryLimiterClient(address) as unary,
        open_channel(address) as channel,
    ):
        stub = cast("LimiterServiceAsyncStub", limiter_pb2_grpc.LimiterServiceStub(channel))

        async def hold(client: LimiterClient | UnaryLimiterClient) -> None:
            async with client.lease():
                await asyncio.sleep(_HOLD_S)

        def cancelled(client: LimiterClient | UnaryLimiterClient) -> Ask:
            return lambda patience: _cancelled(hold(client), patience)

        def waited_for(client: LimiterClient | UnaryLimiterClient) -> Ask:
            return lambda patience: asyncio.wait_for(hold(client), patience)

        asks: dict[str, Ask] = {
            "stream, cancelled": cancelled(stream),
            "stream, wait_for": waited_for(stream),
            "unary, cancelled": cancelled(unary),
            "unary, wait_for": waited_for(unary),
            "unary, deadline of the call": lambda patience: _deadline(stub, patience, str(rng.random())),
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


async def _deadline(stub: LimiterServiceAsyncStub, patience: float, client_id: str) -> None:
    """As somebody may who uses the stubs: the call's own deadline, and then the release that the proto asks for."""
    try:
        await stub.AcquireToken(pb.AcquireTokenRequest(client_id=client_id, request_id="1"), timeout=patience)
        await asyncio.sleep(_HOLD_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        raise TimeoutError from None
    finally:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stub.ReleaseToken(pb.ReleaseTokenRequest(client_id=client_id, request_id="1"), timeout=10)
