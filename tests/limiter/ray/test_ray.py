"""The limiter of a Ray cluster: one for the cluster, whoever made it, wherever it runs, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from fairbox.errors import ConfigError
from limiter import ExecutorSession, LimiterClient, LimiterUnavailable, QueueTimeout
from limiter.pool import ExecutionPool, RunTimeout, WorkerDied
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.ray.cluster import RayCluster
from tests.limiter.servers import status_of, until

ray = pytest.importorskip("ray", reason="ray is not installed (extra `ray`)")

from limiter.ray import LimiterMismatch, RayLimiter  # noqa: E402 - after the check for Ray
from tests.limiter.ray.ray_work import most_at_once, share  # noqa: E402

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]
SETTINGS = ("buckets.code.max_in_flight=2", "executor_ttl_s=2")
"""Settings of a limiter that soon grants again after a restart."""
PATIENT = ("buckets.code.max_in_flight=2", "executor_ttl_s=20", "fresh=true")
"""Settings of one that lives on where everything takes its time."""
NAMES = (f"test-{os.getpid()}-{number}" for number in itertools.count())


@asynccontextmanager
async def a_limiter(
    limit: int, *, name: str = "", more: Mapping[str, int] | None = None, **options: Any
) -> AsyncIterator[RayLimiter]:
    """A limiter of its own for one test, with `more` buckets; destroyed at the end."""
    settings = ("executor_ttl_s=20", "grace_s=1.5", "fresh=true")
    buckets = {"code": limit, **(more or {})}
    async with RayLimiter(buckets, settings=settings, name=name or next(NAMES), **options) as limiter:
        try:
            yield limiter
        finally:
            await limiter.destroy()


async def status(limiter: RayLimiter) -> pb.GetStatusResponse:
    """Status that the service reports about itself."""
    return await status_of(limiter.admin_address, wait_for_ready=False)


async def code(limiter: RayLimiter) -> pb.BucketStatus:
    """The state of the bucket `code`."""
    return next(bucket for bucket in (await status(limiter)).buckets if bucket.config.name == "code")


def process_of(bucket: str) -> int:
    """The service that has a bucket of this name, which no other one on the machine has."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"buckets.{bucket}.max_in_flight=1".encode() in entry.read_bytes().split(b"\0"):
                return int(entry.parent.name)
    raise AssertionError(f"no process has the bucket {bucket}")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def restarted(name: str, epoch: int, *, within: float = 90.0) -> int:
    """The epoch that leads and has recovered, after `epoch`."""
    async with asyncio.timeout(within):
        while True:
            try:
                async with RayLimiter(name=name) as limiter:
                    found = await status(limiter)
                if found.epoch > epoch and not found.recovering:
                    return found.epoch
            except (LimiterUnavailable, grpc.aio.AioRpcError):
                pass
            await asyncio.sleep(0.1)


async def given_back(limiter: RayLimiter) -> pb.BucketStatus:
    """The state of its bucket `code` once nothing is held and nothing waits: a release is told a moment later."""
    async with asyncio.timeout(15):
        while (bucket := await code(limiter)).held or bucket.queued:
            await asyncio.sleep(0.02)
    return bucket


async def workers(
    name: str, log: str, *, placed: list[dict[str, float]], settings: Sequence[str] = PATIENT
) -> list[int]:
    """Runs `share` in a Ray worker process for each placement, all at once."""
    task = ray.remote(max_calls=1)(share)
    calls = [task.options(num_cpus=0, resources=each).remote(name, settings, log, 6) for each in placed]
    return list(await asyncio.gather(*calls))


async def test_basic_multi_process_init(tmp_path: Path) -> None:
    name, log = next(NAMES), str(tmp_path / "log")
    first = await workers(name, log, placed=[{}])  # the process that made the actor ends with its task
    later = await workers(name, log, placed=[{}, {}])
    assert len({*first, *later}) == 1, "one limiter, in its first life"
    async with RayLimiter(name=name) as limiter:
        assert (await given_back(limiter)).granted_total == 21, "18 functions, and a lease for each worker"
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
        await given_back(limiter)


async def test_functions_run_as_tasks_of_ray(tmp_path: Path) -> None:
    def sleep() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)

    async with a_limiter(1) as limiter, ExecutionPool(limiter, num_workers=2, kind="ray") as pool:
        assert await asyncio.gather(*(pool.run(lambda number=number: -number) for number in range(3))) == [0, -1, -2]
        with pytest.raises(ZeroDivisionError) as raised:
            await pool.run(lambda: 1 // 0)
        assert "in a task of Ray" in raised.value.__notes__[0]
        with pytest.raises(WorkerDied, match="Ray has lost the function"):
            await pool.run(os._exit, 7)
        cancelled = asyncio.create_task(pool.run(sleep))
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", within=30)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await until(lambda: not Path(f"/proc/{(tmp_path / 'pid').read_text()}/exe").exists())
        with pytest.raises(RunTimeout):
            await pool.run(time.sleep, 60, timeout=0.5)
        counts = pool.statistics()
        assert (counts.returned_total, counts.raised_total, counts.died_total) == (3, 1, 1)
        assert (counts.cancelled_total, counts.timed_out_total, counts.running) == (1, 1, 0)
        await given_back(limiter)


async def test_what_is_not_the_same_limiter_is_refused_by_name() -> None:
    name = next(NAMES)
    async with RayLimiter({"code": 2}, name=name) as limiter:
        with pytest.raises(LimiterMismatch, match=r"runs with buckets.code.max_in_flight=2, where .*=50 was asked for"):
            await RayLimiter({"code": 50}, name=name).__aenter__()
        async with RayLimiter({"code": 2}, name=name) as same:
            assert same.address == limiter.address
        await limiter.destroy()
    with pytest.raises(LimiterUnavailable, match="there is no limiter fairbox/nobody; make it with"):
        await RayLimiter(name="nobody").__aenter__()


async def test_settings_that_can_not_be_end_with_their_sentence() -> None:
    name = next(NAMES)
    limiter = RayLimiter({"code": 0}, name=name)
    with pytest.raises(LimiterUnavailable, match="max_in_flight"):
        await limiter.__aenter__()
    await limiter.destroy()
    with pytest.raises((LimiterUnavailable, ConfigError)):
        await RayLimiter(name=name).__aenter__()


@pytest.mark.parametrize("killed", ["actor", "service"])
async def test_restart_serves_those_who_waited_in_order(killed: str) -> None:
    name, order = next(NAMES), list[int]()

    async def wait(client: LimiterClient, number: int) -> None:
        async with client.lease(queue_timeout=300):
            order.append(number)

    buckets, settings = {"code": 1, name: 1}, ("executor_ttl_s=3",)
    async with (
        RayLimiter(buckets, settings=settings, name=name) as limiter,
        # Patient enough for Ray to start a process on a machine that does other things.
        LimiterClient("ray", transport=limiter.transport(), unavailable_after=200) as client,
        limiter.executor() as executor,
    ):
        async with executor.acquire():
            tasks = []
            for number in range(4):
                tasks.append(asyncio.create_task(wait(client, number)))
                while (await code(limiter)).queued <= number:
                    await asyncio.sleep(0.01)
            epoch = (await status(limiter)).epoch
            service = process_of(name)
            os.kill(parent(service) if killed == "actor" else service, signal.SIGKILL)
            await until(lambda: not client.connected, within=60)
            await until(lambda: client.connected, within=100)
        await asyncio.gather(*tasks)
        assert order == list(range(4))
        assert await restarted(name, epoch) > epoch
        await until(lambda: not Path(f"/proc/{service}").exists(), within=60)
        await limiter.destroy()


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


async def test_limiter_without_an_answer_of_its_cluster_ends_before_one_that_follows_grants(
    cluster: RayCluster,
) -> None:
    """A follower grants only after its learning time: `fresh` was for the first start."""
    name = next(NAMES)
    async with a_limiter(1, name=name, more={name: 1}) as limiter:
        epoch, service = (await status(limiter)).epoch, process_of(name)
        with cluster.silent():
            await asyncio.sleep(2)
            assert runs(service)
            await until(lambda: not runs(service), within=10)
        ended = time.monotonic()
        assert await restarted(name, epoch) > epoch
        assert time.monotonic() - ended > 20


async def test_limiter_that_stood_still_decides_nothing_when_it_goes_on() -> None:
    name = next(NAMES)
    async with a_limiter(1, name=name, more={name: 1}) as limiter:
        service = process_of(name)
        both = (parent(service), service)
        async with LimiterClient(limiter.address) as client:
            await until(lambda: client.connected, within=30)
            for pid in both:
                os.kill(pid, signal.SIGSTOP)
            asked = asyncio.create_task(client.lease(queue_timeout=60).__aenter__())
            await asyncio.sleep(6)
            os.kill(service, signal.SIGCONT)  # its actor still stands
            await until(lambda: not runs(service), within=10)
            os.kill(both[0], signal.SIGCONT)
            assert not asked.done()
            asked.cancel()


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
            await workers(name, log, placed=[here, elsewhere, elsewhere], settings=SETTINGS)
            assert most_at_once(log) == 2
            epoch = (await status(limiter)).epoch
        with cluster.another_node(movable=1):
            await restarted(name, epoch)
            await workers(name, log, placed=[here, elsewhere], settings=SETTINGS)
            assert most_at_once(log) == 2
            await limiter.destroy()
