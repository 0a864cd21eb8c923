"""The limiter as a Ray actor: one for the cluster, whoever made it, wherever it runs, however it ends."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import ConfigError
from limiter import ExecutorSession, LimiterClient, LimiterUnavailable, QueueTimeout
from limiter.core import Timing
from limiter.pool import ExecutionPool, RunTimeout, WorkerDied
from tests.limiter.contract.cluster import RayCluster
from tests.limiter.contract.network import Cuttable
from tests.limiter.servers import until

ray = pytest.importorskip("ray", reason="ray is not installed (extra `ray`)")

from limiter.ray import LimiterMismatch, RayLimiter, RaySettings  # noqa: E402 - after the check for Ray
from limiter.ray.settings import NAMESPACE, bucket_limits  # noqa: E402
from limiter.ray.store import ClusterStore  # noqa: E402
from tests.limiter.contract.ray_work import most_at_once, share  # noqa: E402

pytestmark = pytest.mark.usefixtures("cluster")
SETTINGS = RaySettings(bucket_limits({"code": 2}), Timing(executor_ttl=2.0), lease=2.0)
NAMES = (f"test-{number}" for number in itertools.count())


@asynccontextmanager
async def a_limiter(limit: int, *, name: str = "", **options: Any) -> AsyncIterator[RayLimiter]:
    """A limiter of its own for one test; destroyed at the end."""
    settings = RaySettings(
        bucket_limits({"code": limit}), Timing(executor_ttl=20.0, client_return=0.5), poll=0.5, silence=0.5
    )
    async with RayLimiter(name=name or next(NAMES), settings=settings, **options) as limiter:
        try:
            yield limiter
        finally:
            await limiter.destroy()


async def kill_actor(limiter: RayLimiter, name: str) -> int:
    """SIGKILLs the actor's process; returns its epoch."""
    epoch = (await limiter.statistics()).epoch
    claim = await ClusterStore(NAMESPACE, name).get(f"epoch.{epoch}")
    assert claim is not None
    os.kill(int(claim.decode().split()[1]), signal.SIGKILL)
    return epoch


async def restarted(limiter: RayLimiter, epoch: int, *, within: float = 60.0) -> None:
    """Returns when a later epoch leads and has recovered."""
    async with asyncio.timeout(within):
        while True:
            try:
                statistics = await limiter.statistics()
                if statistics.epoch > epoch and not statistics.recovering:
                    return
            except LimiterUnavailable:
                pass
            await asyncio.sleep(0.05)


async def workers(name: str, log: str, *, placed: list[dict[str, float]]) -> list[int]:
    """Runs `share` in a Ray worker process for each placement, all at once."""
    task = ray.remote(max_calls=1)(share)
    calls = [task.options(num_cpus=0, resources=each).remote(name, SETTINGS, log, 6) for each in placed]
    return list(await asyncio.gather(*calls))


async def test_basic_multi_process_init(tmp_path: Path) -> None:
    name, log = next(NAMES), str(tmp_path / "log")
    first = await workers(name, log, placed=[{}])  # the process that made the actor ends with its task
    later = await workers(name, log, placed=[{}, {}])
    assert len({*first, *later}) == 1, "one limiter, in its first incarnation"
    async with RayLimiter(name=name) as limiter:
        bucket = (await limiter.statistics()).bucket()
        assert (bucket.held, bucket.queued, bucket.granted_total) == (0, 0, 18)
        await limiter.destroy()


class TestSingleNodeRateLimiterCase:
    async def test_processes_of_one_machine_share_the_limit(self, tmp_path: Path) -> None:
        name, log = next(NAMES), str(tmp_path / "log")
        await workers(name, log, placed=[{}, {}, {}])
        assert most_at_once(log) == 2
        async with RayLimiter(name=name) as limiter:
            await limiter.destroy()


async def test_rotten_execution() -> None:
    async with a_limiter(1) as limiter:
        async with (
            ExecutionPool(limiter, num_workers=2) as threads,
            ExecutionPool(limiter, num_workers=2, kind="process") as processes,
        ):
            for pool in (threads, processes):
                with pytest.raises(ZeroDivisionError):
                    await pool.run(lambda: 1 // 0)
            with pytest.raises(WorkerDied):
                await processes.run(os._exit, 1)
            with pytest.raises(RunTimeout):
                await processes.run(time.sleep, 60, timeout=0.1)
            cancelled = asyncio.create_task(processes.run(time.sleep, 60))
            await until(lambda: processes.statistics().running == 1)
            with pytest.raises(QueueTimeout):
                await threads.run(int, queue_timeout=0.2)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            assert await asyncio.gather(*(pool.run(int, "7") for pool in (threads, processes) * 3)) == [7] * 6
        statistics = await limiter.statistics()
        assert (statistics.held, statistics.queued) == (0, 0)


async def test_another_limit_is_refused_or_set_explicitly_and_outlives_a_restart() -> None:
    name = next(NAMES)
    async with RayLimiter({"code": 2}, name=name) as limiter:
        with pytest.raises(LimiterMismatch, match=r"runs with code\.max_in_flight 2, where 50 was asked for"):
            await RayLimiter({"code": 50}, name=name).__aenter__()
        with pytest.raises(LimiterMismatch, match="runs with buckets code, where code, other was asked for"):
            await RayLimiter({"code": 2, "other": 1}, name=name).__aenter__()
        old = (await limiter.statistics()).bucket().limits
        changed = await limiter.configure(replace(old, max_in_flight=1))
        assert changed.version == old.version + 1
        with pytest.raises(LimiterMismatch, match="has another version than 1"):
            await limiter.configure(replace(old, max_in_flight=9))
        await restarted(limiter, await kill_actor(limiter, name))
        assert (await limiter.statistics()).bucket().limits.max_in_flight == 1
        async with RayLimiter({"code": 1}, name=name):
            await limiter.destroy()


async def test_missing_limiter_is_named() -> None:
    with pytest.raises(LimiterUnavailable, match="there is no limiter fairbox/nobody; make it with"):
        await RayLimiter(name="nobody").__aenter__()
    with pytest.raises(ConfigError, match="buckets is given beside settings"):
        RayLimiter({"code": 1}, settings=RaySettings(()))


async def test_restarted_actor_counts_what_runs_and_serves_those_who_waited_in_order() -> None:
    name, order = next(NAMES), list[int]()

    async def wait(client: LimiterClient, number: int) -> None:
        async with client.lease():
            order.append(number)

    async with a_limiter(1, name=name) as limiter:
        network = Cuttable(limiter.transport())
        async with ExecutorSession(network.target, transport=network) as executor, limiter.client() as client:
            async with executor.acquire() as running:
                tasks = []
                for number in range(4):
                    tasks.append(asyncio.create_task(wait(client, number)))
                    while (await limiter.statistics()).queued <= number:
                        await asyncio.sleep(0.01)
                network.cut()
                epoch = await kill_actor(limiter, name)
                await until(lambda: not client.connected)
                await until(lambda: client.connected, within=30)
                statistics = await limiter.statistics()
                assert (statistics.recovering, statistics.held, statistics.queued) == (True, 0, 4), "one is missing"
                network.mend()
                await restarted(limiter, epoch)
                await until(lambda: executor.connected)
                assert executor.vouches(running), "it was back within its time"
                statistics = await limiter.statistics()
                assert (statistics.bound, statistics.queued, order) == (1, 4, [])
            await asyncio.gather(*tasks)
            assert order == list(range(4))


async def test_actor_ends_itself_when_a_later_epoch_has_begun() -> None:
    name = next(NAMES)
    async with a_limiter(1, name=name) as limiter:
        epoch = (await limiter.statistics()).epoch
        node = ray.get_runtime_context().get_node_id()
        assert await ClusterStore(NAMESPACE, name).claim(f"epoch.{epoch + 1}", f"{node} 4194305 0".encode())
        await restarted(limiter, epoch + 1)
        assert (await limiter.statistics()).epoch == epoch + 2
        async with limiter.client() as client, client.lease():
            pass


async def test_destroyed_limiter_is_unavailable() -> None:
    async with a_limiter(1) as limiter:
        transport = limiter.transport()
        async with (
            LimiterClient(transport.target, transport=transport, unavailable_after=0.3) as client,
            ExecutorSession(transport.target, transport=limiter.transport()),
            client.lease(),
        ):
            waiter = asyncio.create_task(client.lease().__aenter__())
            await until(lambda: client.waiting == 1)
            await limiter.destroy()
            with pytest.raises(LimiterUnavailable, match="is not available"):
                await asyncio.wait_for(waiter, 20)


class TestMultiNodeRateLimiterCase:
    async def test_machines_share_the_limit_and_it_survives_the_loss_of_its_own(
        self, cluster: RayCluster, tmp_path: Path
    ) -> None:
        name, log = next(NAMES), str(tmp_path / "log")
        here: dict[str, float] = {}
        elsewhere = {"elsewhere": 1.0}
        limiter = RayLimiter(name=name, settings=SETTINGS, resources={"movable": 1})
        with cluster.another_node(movable=1):
            await limiter.__aenter__()
            await workers(name, log, placed=[here, elsewhere, elsewhere])
            assert most_at_once(log) == 2
            epoch = (await limiter.statistics()).epoch
        with cluster.another_node(movable=1):
            await restarted(limiter, epoch)
            await workers(name, log, placed=[here, elsewhere])
            assert most_at_once(log) == 2
            await limiter.destroy()
