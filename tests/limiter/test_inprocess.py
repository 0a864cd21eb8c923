"""The limiter without a network keeps the same promises."""

from __future__ import annotations

import asyncio

import pytest

from limiter import LimiterUnavailable, QueueTimeout
from limiter.core import Timing
from tests.limiter.inprocess import InProcessLimiter
from tests.limiter.servers import until


async def test_order_and_limit_hold_within_one_program() -> None:
    async with InProcessLimiter({"code": 2}) as limiter, limiter.client() as client:
        order: list[int] = []
        running = most = 0

        async def work(number: int) -> None:
            nonlocal running, most
            async with client.lease():
                order.append(number)
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.001)
                running -= 1

        await asyncio.gather(*(work(number) for number in range(40)))
        assert (order, most) == (list(range(40)), 2)
        await until(lambda: (limiter.statistics().held, limiter.statistics().queued) == (0, 0))


async def test_bound_lease_is_freed_by_its_executor_alone() -> None:
    async with (
        InProcessLimiter({"code": 1}, timing=Timing(grace=0.05)) as limiter,
        limiter.executor(executor_id="e") as executor,
    ):
        async with limiter.client() as client, client.lease() as lease:
            assert (await executor.bind(lease)).bound
            with pytest.raises(QueueTimeout):
                await client.lease(queue_timeout=0.05).__aenter__()
        await asyncio.sleep(0.1)
        assert limiter.statistics().bound == 1
        executor.release(lease)
        await until(lambda: limiter.statistics().held == 0)


async def test_closed_limiter_is_unavailable() -> None:
    async with InProcessLimiter({"code": 1}) as limiter:
        client = limiter.client()
    async with client:
        client._runner._unavailable_after = 0.1
        with pytest.raises(LimiterUnavailable, match="the limiter was closed"):
            await client.lease().__aenter__()
