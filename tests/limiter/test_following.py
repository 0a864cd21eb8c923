"""Two limiters as processes of one machine: clients and executors follow the one that leads, and the limit holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

from limiter import ExecutorSession, Lease, LimiterClient, LimiterUnavailable
from tests.limiter.leadership.test_processes import leading
from tests.limiter.servers import LimiterProcess, limiter_process, until

LIMIT = 2


async def bound(executor: ExecutorSession, lease: Lease) -> bool:
    """Binds a lease, and says whether it is the executor's. If the limiter dies meanwhile, the lease is given back."""
    try:
        return (await executor.bind(lease, timeout=60)).bound
    except LimiterUnavailable:
        return False


class Work:
    """Programs that two executors run for one client; counts those that run at once."""

    def __init__(self, client: LimiterClient, executors: list[ExecutorSession]) -> None:
        self.client = client
        self.executors = executors
        self.running = 0
        self.most = 0
        self.done = 0

    async def run(self, number: int, seconds: float) -> None:
        executor = self.executors[number % len(self.executors)]
        while True:
            async with self.client.lease(queue_timeout=120) as lease:
                if not await bound(executor, lease):
                    continue  # granted by the limiter that is dead, and not bound in time
            try:
                if executor.vouches(lease):
                    self.running += 1
                    self.most = max(self.most, self.running)
                    await asyncio.sleep(seconds)
                    self.running -= 1
                    self.done += 1
                    return
            finally:
                executor.release(lease)


async def test_clients_and_executors_go_on_with_the_limiter_that_follows(tmp_path: Path) -> None:
    settings = ["leader=file", f"state_file={tmp_path / 'state'}", "executor_ttl_s=3"]
    settings.append(f"buckets.code.max_in_flight={LIMIT}")
    async with limiter_process(*settings) as first:
        epoch = (await leading(first, within=60)).epoch
        async with limiter_process(*settings) as second:
            await until_it_names_another(second)
            listed = f"{second.address},{first.address}"  # the one that stands by comes first
            async with (
                LimiterClient(listed, unavailable_after=60) as client,
                ExecutorSession(listed, executor_id="x0", unavailable_after=60) as one,
                ExecutorSession(listed, executor_id="x1", unavailable_after=60) as two,
            ):
                await until(lambda: client.connected and one.connected and two.connected, within=60)
                assert one.epoch == two.epoch == epoch
                work = Work(client, [one, two])
                runs = [asyncio.create_task(work.run(number, 0.3)) for number in range(16)]
                await until(lambda: work.done >= 2, within=60)
                await first.kill()
                await asyncio.wait_for(asyncio.gather(*runs), 60)
                assert work.done == 16
                assert work.most <= LIMIT
                assert one.epoch == two.epoch > epoch
                assert (await second.status()).leader


async def until_it_names_another(limiter: LimiterProcess) -> None:
    """Returns when a limiter that stands by says who leads."""
    async with asyncio.timeout(60):
        while not (found := await limiter.status()).leader_name:
            assert not found.leader
            await asyncio.sleep(0.02)
    assert found.leader_name.startswith("process ")
