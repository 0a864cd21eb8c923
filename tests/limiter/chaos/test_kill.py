"""SIGKILL of the limiter while many wait: whoever waited first is still first, and no program runs beside another."""

from __future__ import annotations

import asyncio
import contextlib

from limiter import ExecutorSession, LimiterClient
from tests.limiter.servers import LimiterProcess, limiter_process, until

_CLIENTS = 3
_WAITERS = 12


async def _queued(limiter: LimiterProcess, count: int) -> None:
    async with asyncio.timeout(20):
        while (await limiter.bucket()).queued != count:
            await asyncio.sleep(0.01)


async def test_order_and_limit_outlive_a_killed_limiter() -> None:
    order: list[int] = []
    running: list[int] = []
    async with contextlib.AsyncExitStack() as stack:
        settings = ("buckets.code.max_in_flight=1", "executor_ttl_s=3")
        limiter = await stack.enter_async_context(limiter_process(*settings))
        executor = await stack.enter_async_context(ExecutorSession(limiter.address, unavailable_after=60))
        clients = [
            await stack.enter_async_context(LimiterClient(limiter.address, unavailable_after=60))
            for _ in range(_CLIENTS)
        ]

        async def wait(number: int) -> None:
            async with clients[number % _CLIENTS].lease() as lease:
                assert (await executor.bind(lease)).bound
                running.append(number)
                assert running == [number]
                order.append(number)
                await asyncio.sleep(0.005)
                running.clear()
                executor.release(lease)

        held = await stack.enter_async_context(clients[0].lease())
        assert (await executor.bind(held)).bound
        running.append(-1)
        waiters = []
        for number in range(_WAITERS):
            waiters.append(asyncio.create_task(wait(number)))
            await _queued(limiter, number + 1)
        for _ in range(2):
            await limiter.kill()
            await limiter.start()
            await until(lambda: executor.connected and all(client.connected for client in clients), within=30)
            await until(lambda: executor.vouches(held))  # the word that its session is valid follows the welcome
            await _queued(limiter, _WAITERS)
        async with asyncio.timeout(30):
            while (await limiter.status()).recovering:
                await asyncio.sleep(0.05)
        assert order == []
        running.clear()
        executor.release(held)
        await asyncio.wait_for(asyncio.gather(*waiters), 30)
        assert order == list(range(_WAITERS))
        bucket = await limiter.bucket()
        assert (bucket.held, bucket.queued) == (0, 0)
