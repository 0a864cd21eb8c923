"""Far more CPU-bound programs than processors: is a time limit ever met by waiting, and do health and ping answer?"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import aiohttp
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.executor.server import Addresses, executor
from benchmarks.rows import Row, figure
from executor_service import Limits, Outcome

_AT_ONCE = 64
_BUSY_S = 1.0
"""CPU time of each program: at 64 of them on two processors the last one ends after half a minute."""
_LIMIT_S = 10.0
_CODE = f"import time\nwhile time.process_time() < {_BUSY_S}: pass\nprint('done')"
_EVERY_S = 0.05


async def overload_rows() -> list[Row]:
    """A server with its defaults, but for the gateway."""
    settings = ("gateway_listen=GATEWAY", "profiles.python-science.ahead=false")
    async with (
        executor(*settings) as (client, addresses),
        aiohttp.ClientSession() as http,
        grpc.aio.insecure_channel(addresses.health) as channel,
    ):
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            health = tasks.create_task(_probe(_health(channel), ending))
            ping = tasks.create_task(_probe(_ping(http, addresses), ending))
            limits = Limits(wall_time_s=_LIMIT_S)
            results = await asyncio.gather(*(client.execute(_CODE, limits=limits) for _ in range(_AT_ONCE)))
            ending.set()
    outcomes = Counter(result.outcome for result in results)
    false = outcomes[Outcome.TIME_LIMIT]
    failed = _AT_ONCE - false - outcomes[Outcome.FINISHED]
    against = f"{_AT_ONCE} CPU-bound programs at once"
    return [
        figure("overload: false time limits", false, "", most=0, against=against),
        figure("overload: other failures", failed, "", most=0, against=against),
        figure("overload: slowest health answer", health.result(), "ms", most=100.0, against=against),
        figure("overload: slowest /v1/ping", ping.result(), "ms", most=100.0, against=against),
    ]


async def _probe(ask: Callable[[], Awaitable[None]], ending: asyncio.Event) -> float:
    """The slowest answer in milliseconds, asked again and again."""
    slowest = 0.0
    await ask()  # with the connection
    while not ending.is_set():
        began = time.perf_counter()
        await ask()
        slowest = max(slowest, (time.perf_counter() - began) * 1e3)
        await asyncio.sleep(_EVERY_S)
    return slowest


def _health(channel: grpc.aio.Channel) -> Callable[[], Awaitable[None]]:
    stub = health_pb2_grpc.HealthStub(channel)

    async def ask() -> None:
        await stub.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=60)

    return ask


def _ping(http: aiohttp.ClientSession, addresses: Addresses) -> Callable[[], Awaitable[None]]:
    async def ask() -> None:
        async with http.get(f"http://{addresses.gateway}/v1/ping") as answer:
            assert await answer.json() == "pong"

    return ask
