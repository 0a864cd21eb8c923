"""The pool by itself: results and exceptions, timeouts, cancellation, bounds, and the ends of workers."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairbox.errors import FieldErrors
from limiter import Lease, QueueTimeout
from limiter.core.events import Revoke
from limiter.pool import (
    BlockingExecutionPool,
    ExecutionPool,
    FunctionFailed,
    LeaseLost,
    PoolClosed,
    PoolFull,
    RunTimeout,
    WorkerDied,
)
from limiter.pool_worker import MAX_MESSAGE_BYTES, WorkerProcess
from tests.limiter.servers import limiter_server, until

KINDS = pytest.mark.parametrize("kind", ["thread", "process"])


class Unpicklable(Exception):
    """Can be pickled, but not read again."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("only one argument")


def boom() -> None:
    raise KeyError("the function's own words")


@KINDS
async def test_results_and_exceptions_reach_the_caller_as_themselves(kind: str) -> None:
    async with limiter_server(2) as limiter, ExecutionPool(limiter.address, num_workers=2, kind=kind) as pool:
        offset = 4
        assert await pool.run(lambda a, *, b: [a, b, offset], 1, b=2) == [1, 2, 4]
        with pytest.raises(KeyError, match="the function's own words") as raised:
            await pool.run(boom)
        notes = "".join(getattr(raised.value, "__notes__", []))
        frames = str(raised.traceback[-1].frame.code.path)
        assert "in boom" in notes or frames == __file__
        with pytest.raises(FunctionFailed, match="the function raised SystemExit: 3"):
            await pool.run(lambda: exit(3))
        with pytest.raises(FunctionFailed, match="the function raised StopIteration"):
            await pool.run(lambda: next(iter(())))
        facts = pool.statistics()
        assert (facts.returned_total, facts.raised_total, facts.running, facts.queued) == (1, 3, 0, 0)
        await until(lambda: limiter.statistics().held == 0)


async def test_what_cannot_travel_is_told_as_text() -> None:
    def fail() -> None:
        raise Unpicklable(1, 2)

    async with ExecutionPool(None, num_workers=1, kind="process") as pool:
        with pytest.raises(FunctionFailed, match="the function raised Unpicklable, which can't be sent"):
            await pool.run(fail)
        with pytest.raises(FunctionFailed, match="result, a lock, can't be pickled"):
            await pool.run(threading.Lock)
        with pytest.raises(FunctionFailed, match="arguments can't be pickled"):
            await pool.run(print, threading.Lock())
        with pytest.raises(FunctionFailed, match=r"result can't be sent: a message of \d+ bytes is too large"):
            await pool.run(lambda: bytes(MAX_MESSAGE_BYTES))
        with pytest.raises(FunctionFailed, match="is too large, must be at most 67108864"):
            await pool.run(len, bytes(MAX_MESSAGE_BYTES))
        assert await pool.run(lambda: 1) == 1
        assert pool.statistics().started_total == 1, "none of that costs a process"


async def test_process_is_dead_before_a_timeout_frees_its_lease() -> None:
    async with limiter_server(1) as limiter, ExecutionPool(limiter.address, num_workers=1, kind="process") as pool:
        first = await pool.run(os.getpid)
        with pytest.raises(RunTimeout, match=r"longer than 0\.2 s"):
            await pool.run(time.sleep, 60, timeout=0.2)
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
        await until(lambda: limiter.statistics().held == 0)
        assert await pool.run(os.getpid) != first
        assert pool.statistics().timed_out_total == 1


@pytest.mark.parametrize("ended_by", ["timeout", "cancellation"])
async def test_lease_is_held_for_as_long_as_the_kill_takes(ended_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killing, go_on = threading.Event(), threading.Event()
    run = WorkerProcess.run

    def slow(worker: WorkerProcess, message: bytes) -> bytes:
        try:
            return run(worker, message)
        except WorkerDied:
            killing.set()
            go_on.wait(30)
            raise

    monkeypatch.setattr(WorkerProcess, "run", slow)
    async with limiter_server(1) as limiter, ExecutionPool(limiter.address, num_workers=1, kind="process") as pool:
        running = asyncio.create_task(pool.run(time.sleep, 60, timeout=0.1 if ended_by == "timeout" else None))
        await until(lambda: pool.statistics().running == 1)
        if ended_by == "cancellation":
            running.cancel()
        await until(killing.is_set)
        running.cancel()
        await asyncio.sleep(0.1)
        assert limiter.statistics().bound == 1
        assert not running.done()
        go_on.set()
        await asyncio.wait([running])
        await until(lambda: limiter.statistics().held == 0)


async def test_children_of_a_killed_process_die_with_it(tmp_path: Path) -> None:
    path = tmp_path / "pid"

    def spawn() -> None:
        child = subprocess.Popen(["sleep", "600"])
        path.write_text(str(child.pid))
        child.wait()

    async with ExecutionPool(None, num_workers=1, kind="process") as pool:
        running = asyncio.create_task(pool.run(spawn))
        await until(lambda: path.exists() and path.read_text() != "")
        running.cancel()
        await asyncio.wait([running])
        await until(lambda: not Path(f"/proc/{path.read_text()}/exe").exists())


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_processes_that_a_finished_function_left_are_dead_when_its_lease_is_freed() -> None:
    def leave() -> list[int]:
        child = subprocess.Popen(["sleep", "600"])
        shell = "setsid sleep 601 >&- & echo $!"
        orphan = subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, check=True)
        return [child.pid, int(orphan.stdout)]

    async with limiter_server(1) as limiter, ExecutionPool(limiter.address, num_workers=1, kind="process") as pool:
        for _ in range(2):
            left = await pool.run(leave)
            assert not any(alive(pid) for pid in left)
        assert pool.statistics().started_total == 1


async def test_worker_that_leaves_a_child_behind_is_known_to_be_dead() -> None:
    def leave() -> None:
        if os.fork() == 0:
            time.sleep(60)
        os._exit(7)

    async with ExecutionPool(None, num_workers=1, kind="process") as pool:
        with pytest.raises(WorkerDied, match="exited with 7"):
            await asyncio.wait_for(pool.run(leave), 60)


async def test_worker_that_died_while_idle_is_replaced() -> None:
    async with ExecutionPool(None, num_workers=1, kind="process") as pool:
        first = await pool.run(os.getpid)
        os.kill(first, signal.SIGKILL)
        await until(lambda: not pool._idle[0].usable)
        assert await pool.run(os.getpid) != first
        assert (pool.statistics().started_total, pool.statistics().died_total) == (2, 0)


async def test_run_that_gets_no_lease_costs_no_process() -> None:
    async with limiter_server(1) as limiter, ExecutionPool(limiter.address, num_workers=2, kind="process") as pool:
        running = asyncio.create_task(pool.run(time.sleep, 60))
        await until(lambda: pool.statistics().running == 1)
        for _ in range(2):
            with pytest.raises(QueueTimeout, match="in the queue of bucket code were not enough"):
                await pool.run(int, queue_timeout=0.3)
        assert pool.statistics().started_total == 2
        running.cancel()
        await asyncio.wait([running])


async def test_thread_keeps_its_lease_until_it_ends() -> None:
    ending = threading.Event()
    async with limiter_server(1) as limiter, ExecutionPool(limiter.address, num_workers=1) as pool:
        with pytest.raises(RunTimeout):
            await pool.run(ending.wait, 30, timeout=0.05)
        assert (limiter.statistics().bound, pool.statistics().running) == (1, 1)
        with pytest.raises(QueueTimeout, match="no worker of the pool was free"):
            await pool.run(int, queue_timeout=0.05)
        ending.set()
        assert await pool.run(int, "7") == 7
        assert pool.statistics().timed_out_total == 1


@KINDS
async def test_cancelled_caller_ends_the_run(kind: str) -> None:
    ending = threading.Event()
    async with limiter_server(1) as limiter, ExecutionPool(limiter.address, num_workers=2, kind=kind) as pool:
        run = pool.run(time.sleep, 60) if kind == "process" else pool.run(ending.wait, 30)
        running = asyncio.create_task(run)
        await until(lambda: pool.statistics().running == 1)
        waiter = asyncio.create_task(pool.run(int))
        await until(lambda: limiter.statistics().queued == 1)
        waiter.cancel()
        await asyncio.wait([waiter])
        await until(lambda: limiter.statistics().queued == 0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: limiter.statistics().bound == (0 if kind == "process" else 1))
        ending.set()
        assert await pool.run(int, "7") == 7
        assert pool.statistics().cancelled_total == 1


async def test_queue_of_the_pool_is_bounded() -> None:
    ending = threading.Event()
    async with ExecutionPool(None, num_workers=1, max_queued=2) as pool:
        runs = [asyncio.create_task(pool.run(ending.wait, 30)) for _ in range(5)]
        done, _ = await asyncio.wait(runs, timeout=0.05)
        assert [type(task.exception()) for task in done] == [PoolFull, PoolFull]
        assert pool.statistics().queued == 2
        ending.set()
        await asyncio.wait(runs)


async def test_process_is_killed_when_its_lease_is_lost() -> None:
    async with limiter_server(1) as limiter, ExecutionPool(limiter.address, num_workers=1, kind="process") as pool:
        running = asyncio.create_task(pool.run(time.sleep, 60))
        await until(lambda: pool.statistics().running == 1)
        (lease,) = limiter.runner.core.leases()
        limiter.runner.apply(Revoke(lease.lease_id, force=True))
        with pytest.raises(LeaseLost, match="was lost while the function ran"):
            await asyncio.wait_for(running, 5)
        await until(lambda: limiter.statistics().held == 0)
        assert await pool.run(int, "7") == 7


async def test_a_lease_that_is_lost_before_anything_runs_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine so busy that the session lapses between a lease and the function's start."""
    async with limiter_server(1) as limiter, ExecutionPool(limiter.address, num_workers=1) as pool:
        session, lost = pool._session, list[Lease]()
        assert session is not None
        when_lost = session.when_lost

        def lose_the_first(lease: Lease, tell: Callable[[], None]) -> None:
            if lost:
                when_lost(lease, tell)
            else:
                lost.append(lease)
                tell()

        monkeypatch.setattr(session, "when_lost", lose_the_first)
        assert await pool.run(int, "7") == 7
        assert len(lost) == 1


@KINDS
async def test_closed_pool_ends_what_it_can_and_says_so(kind: str) -> None:
    ending = threading.Event()
    pool = ExecutionPool(None, num_workers=1, kind=kind, close_timeout=0.1)
    async with pool:
        run = pool.run(time.sleep, 60) if kind == "process" else pool.run(ending.wait, 30)
        runs = [asyncio.create_task(run), asyncio.create_task(pool.run(int))]
        await until(lambda: pool.statistics().running == 1)
    await asyncio.wait(runs, timeout=5)
    assert [type(each.exception()) for each in runs] == [PoolClosed, PoolClosed]
    with pytest.raises(PoolClosed):
        await pool.run(int)
    ending.set()


async def test_lease_of_a_thread_that_outlives_its_pool_stays_counted() -> None:
    ending = threading.Event()
    async with limiter_server(1) as limiter:
        async with ExecutionPool(limiter.address, num_workers=1, close_timeout=0.05) as pool:
            running = asyncio.create_task(pool.run(ending.wait, 30))
            await until(lambda: pool.statistics().running == 1)
        await asyncio.wait([running])
        await asyncio.sleep(0.05)
        assert limiter.statistics().bound == 1
        ending.set()


async def test_bad_arguments_are_refused_by_name() -> None:
    with pytest.raises(FieldErrors, match=r"num_workers is 0, must be from 1.*kind is 'fork', must be one of thread"):
        ExecutionPool(None, num_workers=0, kind="fork")
    async with ExecutionPool(None) as pool:
        with pytest.raises(FieldErrors, match="timeout is -1, must be above 0 seconds"):
            await pool.run(int, timeout=-1)


async def test_threads_see_the_context_of_their_caller() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(3)
    async with ExecutionPool(None) as pool:
        assert await pool.run(variable.get) == 3


def test_blocking_pool_runs_without_asyncio() -> None:
    with BlockingExecutionPool(None, num_workers=2, kind="process") as pool:
        assert pool.run(int, "7") == 7
        with pytest.raises(WorkerDied):
            pool.run(os._exit, 3)
        running = pool.submit(time.sleep, 60)
        deadline = time.monotonic() + 60
        while not pool.statistics().running and time.monotonic() < deadline:
            time.sleep(0.01)
        running.cancel()
        while pool.statistics().running and time.monotonic() < deadline:
            time.sleep(0.01)
        assert pool.statistics().cancelled_total == 1
    with pytest.raises(PoolClosed):
        pool.run(int)
    with pytest.raises(FieldErrors, match="num_workers is 0"), BlockingExecutionPool(None, num_workers=0):
        pass


@KINDS
async def test_two_pools_share_one_limit(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def work() -> int:
        import os
        import time

        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, b"+")
        deadline = time.monotonic() + 30
        while b"++" not in log.read_bytes() and time.monotonic() < deadline:  # until another one runs beside it
            time.sleep(0.002)
        time.sleep(0.02)
        os.write(descriptor, b"-")
        os.close(descriptor)
        return os.getpid()

    async with (
        limiter_server(2) as limiter,
        ExecutionPool(limiter.address, num_workers=2, kind=kind) as a,
        ExecutionPool(limiter.address, num_workers=2, kind=kind) as b,
    ):
        pids = await asyncio.gather(*((a, b)[number % 2].run(work) for number in range(12)))
        assert (os.getpid() in pids) == (kind == "thread")
        await until(lambda: limiter.statistics().held == 0)
    running = most = 0
    for mark in log.read_text():
        running += 1 if mark == "+" else -1
        most = max(most, running)
    assert most == 2
    assert len(log.read_text()) == 24
