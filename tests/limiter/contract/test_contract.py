"""What every host of the limiter promises, over the same clients and executors."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest

from limiter import BindStatus, Lease, LeaseRefused, LimiterClient, QueueFull, QueueTimeout, UnknownBucket
from tests.limiter.contract.hosts import MAX_QUEUED, TIMING, Counts, Host
from tests.limiter.contract.network import Cuttable
from tests.limiter.servers import program, until

VICTIM = "from tests.limiter.contract.victim import main; main()"


async def seen(host: Host, bucket: str, condition: Callable[[Counts], bool], *, within: float = 10.0) -> None:
    """Returns when the host's counts are as they should be."""
    try:
        async with asyncio.timeout(within):
            while not condition(counts := await host.counts(bucket)):
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{counts} within {within} s") from None


async def waiting(host: Host, bucket: str, count: int) -> None:
    """Returns when that many requests wait."""
    await seen(host, bucket, lambda counts: counts.queued == count)


async def idle(host: Host, bucket: str) -> None:
    """Returns when nothing is held and nothing waits."""
    await seen(host, bucket, lambda counts: (counts.held, counts.queued) == (0, 0))


async def test_waiters_are_served_in_the_order_of_their_arrival(host: Host) -> None:
    bucket, order = host.bucket(1), list[int]()

    async def wait(client: LimiterClient, number: int) -> None:
        async with client.lease(bucket):
            order.append(number)
            await asyncio.sleep(0.001)

    async with host.client() as first, host.client() as second:
        tasks = []
        async with first.lease(bucket):
            for number in range(12):
                tasks.append(asyncio.create_task(wait((first, second)[number % 2], number)))
                await waiting(host, bucket, number + 1)
            assert order == []
        await asyncio.gather(*tasks)
        assert order == list(range(12))
        await idle(host, bucket)


async def test_holders_never_outnumber_the_limit(host: Host) -> None:
    bucket, running, most, done = host.bucket(3), 0, 0, 0

    async def work(client: LimiterClient) -> None:
        nonlocal running, most, done
        async with client.lease(bucket):
            running += 1
            most = max(most, running)
            await asyncio.sleep(random.uniform(0, 0.004))
            running -= 1
            done += 1

    async with host.client() as a, host.client() as b, asyncio.TaskGroup() as group:
        for number in range(90):
            group.create_task(work((a, b)[number % 2]))
    assert (done, most) == (90, 3)
    await idle(host, bucket)


async def test_heavy_request_is_not_passed_by_light_ones(host: Host) -> None:
    bucket, order = host.bucket(3), list[str]()

    async def wait(client: LimiterClient, tokens: int) -> None:
        async with client.lease(bucket, tokens):
            order.append(f"{tokens}")
            assert (await host.counts(bucket)).held <= 3

    async with host.client() as client:
        async with client.lease(bucket, 2):
            heavy = asyncio.create_task(wait(client, 3))
            await waiting(host, bucket, 1)
            light = asyncio.create_task(wait(client, 1))
            await waiting(host, bucket, 2)
            assert order == []
        await asyncio.gather(heavy, light)
        assert order == ["3", "1"]


async def test_failed_waits_release_nothing_that_they_did_not_have(host: Host) -> None:
    bucket = host.bucket(1)
    async with host.client() as client:
        async with client.lease(bucket):
            cancelled = asyncio.create_task(client.lease(bucket).__aenter__())
            await waiting(host, bucket, 1)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            with pytest.raises(QueueTimeout, match="were not enough"):
                await client.lease(bucket, queue_timeout=0.05).__aenter__()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.lease(bucket, queue_timeout=60).__aenter__()
            await waiting(host, bucket, 0)
            # Nothing of that may have freed the token that is held.
            with pytest.raises(QueueTimeout):
                await client.lease(bucket, queue_timeout=0.2).__aenter__()
            assert (await host.counts(bucket)).held == 1
        await idle(host, bucket)


async def test_full_queue_is_refused_with_a_delay(host: Host) -> None:
    bucket = host.bucket("short")
    async with host.client() as client:
        async with client.lease(bucket):
            waiters = [asyncio.create_task(client.lease(bucket).__aenter__()) for _ in range(MAX_QUEUED)]
            await waiting(host, bucket, MAX_QUEUED)
            with pytest.raises(QueueFull) as full:
                await client.lease(bucket).__aenter__()
            assert full.value.retry_after > 0
            for waiter in waiters:
                waiter.cancel()
            await asyncio.wait(waiters)
        await idle(host, bucket)


async def test_bad_requests_are_refused_by_name(host: Host) -> None:
    bucket = host.bucket(2)
    async with host.client() as client:
        with pytest.raises(UnknownBucket, match="bucket is 'nope', must be one of"):
            await client.lease("nope").__aenter__()
        with pytest.raises(LeaseRefused, match="tokens is 3, must be at most 2"):
            await client.lease(bucket, 3).__aenter__()


async def test_waiters_keep_their_places_over_a_lost_connection(host: Host) -> None:
    bucket, order = host.bucket(1), list[int]()
    network = Cuttable(host.transport())

    async def wait(client: LimiterClient, number: int) -> None:
        async with client.lease(bucket):
            order.append(number)

    async with host.client(network) as client, host.client() as other:
        tasks = []
        async with other.lease(bucket):
            for number in range(4):
                tasks.append(asyncio.create_task(wait(client, number)))
                await waiting(host, bucket, number + 1)
            network.cut()
            await until(lambda: not client.connected)
            tasks.append(asyncio.create_task(wait(other, 4)))
            await waiting(host, bucket, 5)
            network.mend()
            await until(lambda: client.connected)
        await asyncio.gather(*tasks)
    assert order == list(range(5))


async def test_killed_client_frees_what_it_held_and_what_it_waited_for(host: Host) -> None:
    if not host.spec:
        pytest.skip("its clients live and die with it")
    bucket = host.bucket(1)
    async with program(VICTIM, host.spec, "client", bucket) as victim, host.client() as client:
        await seen(host, bucket, lambda counts: (counts.held, counts.queued) == (1, 1))
        waiter = asyncio.create_task(client.lease(bucket).__aenter__())
        await waiting(host, bucket, 2)
        victim.kill()
        await asyncio.wait_for(waiter, 10)
        counts = await host.counts(bucket)
        assert (counts.held, counts.queued) == (1, 0)


async def test_bound_lease_belongs_to_its_executor(host: Host) -> None:
    bucket = host.bucket(2)
    async with host.executor(executor_id="first") as first, host.executor(executor_id="second") as second:
        async with host.client() as client, client.lease(bucket) as lease:
            stolen = Lease(lease.bucket, lease.epoch, lease.seq, "somebody-else")
            assert (await first.bind(stolen)).status is BindStatus.WRONG_CLIENT
            assert (await first.bind(lease)).bound
            refused = await second.bind(lease)
            assert (refused.status, refused.owner) == (BindStatus.BOUND_ELSEWHERE, "first")
        await asyncio.sleep(TIMING.grace + 0.3)
        counts = await host.counts(bucket)
        assert (counts.held, counts.bound) == (1, 1), "its client is gone, its executor is not"
        first.release(lease)
        await idle(host, bucket)


async def test_executor_keeps_what_it_runs_over_a_lost_connection(host: Host) -> None:
    bucket = host.bucket(2)
    network = Cuttable(host.transport())
    async with host.executor(network=network) as executor:
        async with executor.acquire(bucket) as kept:
            async with executor.acquire(bucket):
                network.cut()
                await until(lambda: not executor.connected)
                assert (await host.counts(bucket)).bound == 2, "a disconnect frees nothing"
            network.mend()
            await until(lambda: executor.connected)
            await seen(host, bucket, lambda counts: counts.bound == 1)
            assert executor.vouches(kept)
        await idle(host, bucket)


async def test_executor_stays_valid_by_heartbeats(host: Host) -> None:
    bucket, lapses = host.bucket(1), list[float]()
    async with host.executor() as executor, executor.acquire(bucket) as lease:
        executor.when_lost(lease, lambda: lapses.append(time.monotonic()))
        await asyncio.sleep(TIMING.executor_silence + 0.5)
        assert executor.vouches(lease)
    assert lapses == []
    await idle(host, bucket)


async def test_killed_executor_is_counted_until_its_time_has_passed(host: Host) -> None:
    if not host.spec:
        pytest.skip("its executors live and die with it")
    bucket = host.bucket(1)
    async with program(VICTIM, host.spec, "executor", bucket) as victim:
        victim.kill()
        killed = time.monotonic()
        await victim.wait()
        await asyncio.sleep(TIMING.grace + 0.2)
        assert (await host.counts(bucket)).bound == 1, "its work may not be dead yet"
        await idle(host, bucket)
        # The last heartbeat was at most a quarter of the ttl before the kill.
        assert time.monotonic() - killed > TIMING.executor_silence - TIMING.executor_ttl / 4 - 0.2
    async with host.client() as client, client.lease(bucket, queue_timeout=5):
        pass


async def test_statistics_tell_what_is_held_bound_and_waits(host: Host) -> None:
    bucket = host.bucket(2)
    async with host.client() as client, host.executor() as executor, executor.acquire(bucket), client.lease(bucket):
        waiter = asyncio.create_task(client.lease(bucket).__aenter__())
        await waiting(host, bucket, 1)
        counts = await host.counts(bucket)
        assert (counts.held, counts.bound, counts.queued, counts.granted_total) == (2, 1, 1, 2)
        waiter.cancel()
        await asyncio.wait([waiter])
