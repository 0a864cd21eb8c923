"""A limiter is killed and started again: what runs is counted with its weight, and a void lease leaves its place."""

from __future__ import annotations

import asyncio

from limiter import BindStatus, ExecutorSession, Lease, LimiterClient
from tests.limiter.servers import limiter_process, until

TTL = "executor_ttl_s=3"


async def test_lease_that_nobody_had_bound_leaves_its_place_to_the_one_that_is_asked_instead() -> None:
    order: list[str] = []
    async with (
        limiter_process(TTL, "buckets.code.max_in_flight=1", "buckets.code.start_by_s=60") as limiter,
        LimiterClient(limiter.address, unavailable_after=60) as client,
        LimiterClient(limiter.address, unavailable_after=60) as other,
        ExecutorSession(limiter.address, unavailable_after=60) as executor,
    ):

        async def wait(who: str, limiter: LimiterClient, void: Lease | None = None) -> None:
            async with limiter.lease(queue_timeout=120, instead_of=void):
                order.append(who)

        granted = client.lease()
        void = await granted.__aenter__()
        tasks = [asyncio.create_task(wait("other", other))]
        while (await limiter.bucket()).queued < 1:
            await asyncio.sleep(0.02)
        await limiter.kill()
        await until(lambda: not executor.connected and not client.connected)
        await limiter.start()
        assert (await executor.bind(void, timeout=60)).status is BindStatus.WRONG_EPOCH
        await granted.__aexit__(None, None, None)
        tasks.append(asyncio.create_task(wait("instead", client, void)))
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert order == ["instead", "other"]


async def test_restarted_limiter_counts_a_heavy_lease_with_its_weight() -> None:
    async with (
        limiter_process(TTL, "buckets.code.max_in_flight=4") as limiter,
        LimiterClient(limiter.address, unavailable_after=60) as client,
        ExecutorSession(limiter.address, unavailable_after=60) as executor,
    ):
        async with client.lease(tokens=3) as running:
            assert (await executor.bind(running, timeout=30)).bound
            epoch = executor.epoch
            await limiter.kill()
        await limiter.start()
        await until(lambda: executor.connected and executor.epoch > epoch, within=30)
        bucket = await limiter.bucket()
        assert (bucket.held, bucket.bound) == (3, 3)
        executor.release(running)
        while (await limiter.bucket()).held:
            await asyncio.sleep(0.02)
