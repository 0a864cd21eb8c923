"""Two limiters as processes of one machine: clients and executors follow the one that leads, and the limit holds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fairbox.ports import free_port
from limiter import ExecutorSession, Lease, LimiterClient, LimiterUnavailable
from tests.limiter.leadership.test_processes import leading, status
from tests.limiter.servers import ROOT, until
from tests.limiter.unary_client import UnaryLimiterClient

LIMIT = 2


@asynccontextmanager
async def limiter(port: int, admin: int, state: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m limiter` with leader=file; SIGKILLed at the end."""
    words = [
        f"listen=127.0.0.1:{port}",
        f"admin_listen=127.0.0.1:{admin}",
        "health_listen=127.0.0.1:0",
        "metrics_listen=",
        "leader=file",
        f"state_file={state}",
        "fresh=true",
        "executor_ttl_s=3",
        f"buckets.code.max_in_flight={LIMIT}",
    ]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "limiter", *words, cwd=ROOT)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def bound(executor: ExecutorSession, lease: Lease) -> bool:
    """Whether a lease is the executor's. One that the limiter died over is given back."""
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
    ports, admins, state = (free_port(), free_port()), (free_port(), free_port()), tmp_path / "state"
    addresses = [f"127.0.0.1:{port}" for port in ports]
    async with limiter(ports[0], admins[0], state) as first:
        epoch = (await leading(admins[0], within=60)).epoch
        async with limiter(ports[1], admins[1], state):
            await until_it_names_another(admins[1])
            listed = ",".join(reversed(addresses))  # the one that stands by comes first
            async with (
                LimiterClient(listed, unavailable_after=60) as client,
                ExecutorSession(listed, executor_id="x0", unavailable_after=60) as one,
                ExecutorSession(listed, executor_id="x1", unavailable_after=60) as two,
            ):
                await until(lambda: client.connected and one.connected and two.connected, within=60)
                async with UnaryLimiterClient(listed) as unary, unary.lease(queue_timeout=30) as lease:
                    assert lease.epoch == epoch
                assert client.epoch == one.epoch == two.epoch == epoch
                work = Work(client, [one, two])
                runs = [asyncio.create_task(work.run(number, 0.3)) for number in range(16)]
                await until(lambda: work.done >= 2, within=60)
                first.kill()
                await asyncio.wait_for(asyncio.gather(*runs), 60)
                assert work.done == 16
                assert work.most <= LIMIT
                assert one.epoch == two.epoch > epoch
                async with UnaryLimiterClient(",".join(addresses)) as unary, unary.lease(queue_timeout=30) as lease:
                    assert lease.epoch == one.epoch
                assert (await status(admins[1])).leader


async def until_it_names_another(admin: int) -> None:
    """Returns when a limiter that stands by says who leads."""
    async with asyncio.timeout(60):
        while not (found := await status(admin)).leader_name:
            assert not found.leader
            await asyncio.sleep(0.02)
    assert found.leader_name.startswith("process ")
