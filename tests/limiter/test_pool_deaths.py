"""Workers of a pool, and pools, that are killed: what becomes of their leases and processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from limiter.core import Timing
from limiter.pool import ExecutionPool, WorkerDied
from tests.limiter.servers import limiter_server, program, until


async def test_killed_worker_frees_its_lease() -> None:
    async with limiter_server(1) as limiter, ExecutionPool(limiter.address, num_workers=1, kind="process") as pool:
        with pytest.raises(WorkerDied, match="exited with 7"):
            await pool.run(os._exit, 7)
        with pytest.raises(WorkerDied, match="was killed by SIGKILL"):
            await pool.run(lambda: os.kill(os.getpid(), signal.SIGKILL))
        assert await pool.run(lambda: 5) == 5
        await until(lambda: limiter.statistics().held == 0)


POOL = """
import asyncio, os, sys, time
from limiter.pool import ExecutionPool

def work(path):
    import os, time
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    os.rename(path, path + ".ready")
    time.sleep(600)

async def main():
    async with ExecutionPool(sys.argv[1], num_workers=1, kind="process") as pool:
        running = asyncio.create_task(pool.run(work, sys.argv[2]))
        while not os.path.exists(sys.argv[2] + ".ready"):
            await asyncio.sleep(0.02)
        print("READY", flush=True)
        await running

asyncio.run(main())
"""


async def test_killed_pool_takes_its_workers_along_and_is_counted_until_then(tmp_path: Path) -> None:
    path, ttl = tmp_path / "pid", 4.0
    async with (
        limiter_server(1, grace_s=3.0, executor_ttl_s=ttl) as limiter,
        program(POOL, limiter.address, str(path)) as process,
    ):
        worker = int(path.with_name("pid.ready").read_text())
        await until(lambda: limiter.statistics().bound == 1)
        process.kill()
        await until(lambda: not _alive(worker))
        assert limiter.statistics().bound == 1
        (session,) = limiter.runner.core.sessions(9)
        heard = session.last_heard
        await until(lambda: limiter.statistics().held == 0)
        assert time.monotonic() - heard > Timing(executor_ttl=ttl).executor_silence - 0.01


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
