"""The pool of threads and processes over every host: the limit holds, whatever dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from limiter.pool import ExecutionPool, WorkerDied
from tests.limiter.contract.hosts import TIMING, Host
from tests.limiter.contract.test_contract import idle, seen
from tests.limiter.servers import program, until


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_two_pools_share_one_limit(host: Host, kind: str, tmp_path: Path) -> None:
    bucket, log = host.bucket(2), tmp_path / "log"

    def work() -> int:
        import os
        import time

        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, b"+")
        time.sleep(0.02)
        os.write(descriptor, b"-")
        os.close(descriptor)
        return os.getpid()

    async with (
        ExecutionPool(host, num_workers=2, kind=kind, bucket=bucket) as a,
        ExecutionPool(host, num_workers=2, kind=kind, bucket=bucket) as b,
    ):
        pids = await asyncio.gather(*((a, b)[number % 2].run(work) for number in range(12)))
        assert (os.getpid() in pids) == (kind == "thread")
        await idle(host, bucket)
    running = most = 0
    for mark in log.read_text():
        running += 1 if mark == "+" else -1
        most = max(most, running)
    assert most == 2
    assert len(log.read_text()) == 24


async def test_killed_worker_frees_its_lease(host: Host) -> None:
    bucket = host.bucket(1)
    async with ExecutionPool(host, num_workers=1, kind="process", bucket=bucket) as pool:
        with pytest.raises(WorkerDied, match="exited with 7"):
            await pool.run(os._exit, 7)
        with pytest.raises(WorkerDied, match="was killed by SIGKILL"):
            await pool.run(lambda: os.kill(os.getpid(), signal.SIGKILL))
        assert await pool.run(lambda: 5) == 5
        await idle(host, bucket)


POOL = """
import asyncio, os, sys, time
from limiter import ExecutorSession
from limiter.pool import ExecutionPool
from tests.limiter.contract.victim import transport_of

class Host:
    def executor(self, *, executor_id=""):
        transport = transport_of(sys.argv[1])
        return ExecutorSession(transport.target, transport=transport)

def work(path):
    import os, time
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    os.rename(path, path + ".ready")
    time.sleep(600)

async def main():
    async with ExecutionPool(Host(), num_workers=1, kind="process", bucket=sys.argv[2]) as pool:
        running = asyncio.create_task(pool.run(work, sys.argv[3]))
        while not os.path.exists(sys.argv[3] + ".ready"):
            await asyncio.sleep(0.02)
        print("READY", flush=True)
        await running

asyncio.run(main())
"""


async def test_killed_pool_takes_its_workers_along_and_is_counted_until_then(host: Host, tmp_path: Path) -> None:
    if not host.spec:
        pytest.skip("its pools live and die with it")
    bucket, path = host.bucket(1), tmp_path / "pid"
    async with program(POOL, host.spec, bucket, str(path)) as process:
        worker = int(path.with_name("pid.ready").read_text())
        await seen(host, bucket, lambda counts: counts.bound == 1)
        process.kill()
        killed = time.monotonic()
        await until(lambda: not _alive(worker), within=2)
        assert (await host.counts(bucket)).bound == 1
        await idle(host, bucket)
        assert time.monotonic() - killed > TIMING.executor_silence - TIMING.executor_ttl / 4 - 0.2


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
