"""Runs functions in threads, processes or tasks of Ray, each under a lease of the limiter.

A function starts only under a lease that the limiter vouches for at that moment; the lease is released when the
function has provably ended, and not before. A run waits for its worker first and for its lease second, so that no lease
is held idle. It is no sandbox: functions run with everything that this program may do.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar, cast

from fairbox.errors import FieldError, FieldErrors
from fairbox.extras import require
from limiter import ExecutorSession, Lease, QueueTimeout
from limiter import pool_worker as workers
from limiter.core.limits import MAX_TIME_S
from limiter.core.reasons import ReleaseOutcome
from limiter.pool_worker import (
    FunctionFailed,
    LeaseLost,
    Outcome,
    PoolClosed,
    PoolError,
    PoolFull,
    RunTimeout,
    WorkerDied,
)

__all__ = [
    "BlockingExecutionPool",
    "ExecutionPool",
    "ExecutorHost",
    "FunctionFailed",
    "LeaseLost",
    "PoolClosed",
    "PoolError",
    "PoolFull",
    "PoolStatistics",
    "RunTimeout",
    "WorkerDied",
]

T = TypeVar("T")
_LOG = logging.getLogger("limiter.pool")
_NEEDED_BY_KIND = {"thread": (), "process": ("cloudpickle",), "ray": ("cloudpickle", "ray")}


@dataclasses.dataclass(slots=True)
class PoolStatistics:
    """Counts of a pool at one instant: runs that wait for a worker or their lease, and functions that run, those whose
    callers have given up included. Totals count since the pool was made: ends of functions and runs, workers that
    died by themselves, and worker processes started."""

    num_workers: int
    queued: int = 0
    running: int = 0
    returned_total: int = 0
    raised_total: int = 0
    timed_out_total: int = 0
    cancelled_total: int = 0
    died_total: int = 0
    started_total: int = 0


class ExecutorHost(Protocol):
    """Anything that opens executors' sessions: `RayLimiter`."""

    def executor(self, *, executor_id: str = "") -> ExecutorSession:
        """A session, not entered yet."""
        ...


@dataclasses.dataclass(slots=True, eq=False)
class _Run:
    work: Callable[[], Any]
    message: bytes
    """The same, pickled, for other processes."""
    tokens: int
    timeout: float | None
    deadline: float
    """When worker and lease must be there, on the loop's clock."""
    given_up: asyncio.Future[None]
    """Done when the caller need not wait for the thread any more."""
    lost: asyncio.Future[Lease]
    """Done when the lease is lost."""
    started: bool = False
    ended: ReleaseOutcome = ReleaseOutcome.OK
    """Outcome of the function, for an adaptive limit."""

    def timed_out(self) -> RunTimeout:
        return RunTimeout(f"the function ran for longer than {self.timeout} s")


class ExecutionPool:
    """`async with ExecutionPool("127.0.0.1:50052", num_workers=8) as pool: await pool.run(function, argument)`

    One session of an executor binds every lease of the pool, so the limit holds when this process is killed: its
    workers die with it, and the limiter counts their leases until the session's time has run out.
    """

    def __init__(
        self,
        limiter: str | ExecutorHost | None,
        *,
        num_workers: int = 8,
        kind: str = "thread",
        bucket: str = "code",
        max_queued: int = 10_000,
        close_timeout: float = 30.0,
        name: str = "",
    ) -> None:
        """`limiter`: address of a limiter's server, or a host that is entered, or None: `num_workers` is the only
        limit. `kind`: thread, process or ray. `max_queued`: runs that may wait for a worker. `close_timeout`: how long,
        in seconds, `async with` waits at its end for threads that still run. FieldErrors for a bad value, ConfigError
        for a missing extra."""
        _check(
            ("num_workers", num_workers, 1 <= num_workers <= 10_000, "from 1 to 10000"),
            ("kind", kind, kind in _NEEDED_BY_KIND, f"one of {', '.join(_NEEDED_BY_KIND)}"),
            ("bucket", bucket, bucket != "", "the name of a bucket"),
            ("max_queued", max_queued, max_queued >= 0, "at least 0"),
            ("close_timeout", close_timeout, close_timeout >= 0, "at least 0"),
        )
        require(f"kind={kind}", "pool,ray" if kind == "ray" else "pool", *_NEEDED_BY_KIND[kind])
        self._limiter, self._name, self._kind, self._bucket = limiter, name, kind, bucket
        self._max_runs = num_workers + max_queued
        self._close_timeout = close_timeout
        self._session: ExecutorSession | None = None
        self._workers = asyncio.Semaphore(num_workers)
        self._idle: list[workers.WorkerProcess] = []
        self._runs: dict[asyncio.Task[Outcome], _Run] = {}
        self._open = False
        self._counts = PoolStatistics(num_workers)

    async def __aenter__(self) -> ExecutionPool:
        if isinstance(self._limiter, str):
            self._session = ExecutorSession(self._limiter, executor_id=self._name)
        elif self._limiter is not None:
            self._session = self._limiter.executor(executor_id=self._name)
        if self._session is not None:
            await self._session.__aenter__()
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends what waits and what can be killed, and waits for threads. Callers get PoolClosed."""
        closing = asyncio.create_task(self._close())
        await workers.uninterrupted(closing)
        closing.result()

    def statistics(self) -> PoolStatistics:
        """Counts the runs of now, and all that have ended."""
        return dataclasses.replace(self._counts)

    async def run(
        self,
        function: Callable[..., T],
        /,
        *args: Any,
        timeout: float | None = None,
        queue_timeout: float = 60.0,
        tokens: int = 1,
        **kwargs: Any,
    ) -> T:
        """Waits its turn, runs `function(*args, **kwargs)`, and returns its result or raises its exception.

        `timeout`: the function's longest time, in seconds; None: no end. `queue_timeout`: the longest wait for a worker
        and a lease together. `tokens`: the lease's weight. Pass arguments of these names by `functools.partial`.

        Raises RunTimeout, WorkerDied, LeaseLost, FunctionFailed, PoolFull or PoolClosed, and what
        `LimiterClient.lease()` raises. A caller that is cancelled ends the run: a process or task is killed before its
        lease is freed; a thread runs on, and keeps worker and lease until its end.
        """
        _check(
            ("timeout", timeout, timeout is None or timeout > 0, "above 0 seconds"),
            ("queue_timeout", queue_timeout, queue_timeout > 0, "above 0 seconds"),
        )
        if not self._open:
            raise PoolClosed("the pool is not open")
        if len(self._runs) >= self._max_runs:
            raise PoolFull(f"{len(self._runs) - self._counts.num_workers} runs wait in the pool, which is all that may")
        work = functools.partial(function, *args, **kwargs)
        message = b"" if self._kind == "thread" else workers.request(work)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + queue_timeout
        run = _Run(work, message, tokens, timeout, deadline, loop.create_future(), loop.create_future())
        task = asyncio.create_task(self._perform(run))
        self._runs[task] = run
        task.add_done_callback(self._runs.pop)
        value, error, _ = await self._outcome(run, task)
        if error is not None:
            raise error
        return cast("T", value)

    async def _outcome(self, run: _Run, task: asyncio.Task[Outcome]) -> Outcome:
        either: set[asyncio.Future[Any]] = {task, run.given_up}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._counts.cancelled_total += run.started
            if self._can_end(run):
                task.cancel()
                await workers.uninterrupted(task)
            raise
        if not task.done():
            raise run.timed_out()
        if task.cancelled():
            raise PoolClosed("the pool was closed")
        return task.result()

    def _can_end(self, run: _Run) -> bool:
        return self._kind != "thread" or not run.started

    async def _perform(self, run: _Run) -> Outcome:
        """One run, which is a task that the pool owns, whatever becomes of its caller."""
        counts = self._counts
        async with contextlib.AsyncExitStack() as stack:
            counts.queued += 1
            try:
                await self._turn(run)
                stack.callback(self._workers.release)
                worker = await stack.enter_async_context(self._worker())
                await stack.enter_async_context(self._lease(run))
            finally:
                counts.queued -= 1
            run.started = True
            counts.running += 1
            try:
                value, error, ended = await (self._in_worker(run, worker) if worker else self._in_thread(run))
            finally:
                counts.running -= 1
            run.ended = ReleaseOutcome.TIMEOUT if run.given_up.done() else ended
            counts.returned_total += error is None
            counts.raised_total += error is not None
            return value, error, ended

    async def _turn(self, run: _Run) -> None:
        try:
            async with asyncio.timeout_at(run.deadline):
                await self._workers.acquire()
        except TimeoutError:
            raise QueueTimeout("no worker of the pool was free in time") from None

    @contextlib.asynccontextmanager
    async def _worker(self) -> AsyncIterator[workers.WorkerProcess | workers.RayTask | None]:
        """Worker that runs the function; None: a thread, which needs no preparation."""
        if self._kind != "process":
            yield workers.RayTask() if self._kind == "ray" else None
            return
        while self._idle and not self._idle[-1].usable:
            self._idle.pop().kill()
        worker = self._idle.pop() if self._idle else None
        try:
            if worker is None:
                self._counts.started_total += 1
                worker = workers.WorkerProcess()
                await workers.ready(worker)
            yield worker
        finally:
            if worker is not None and worker.usable and self._open:
                self._idle.append(worker)
            elif worker is not None:
                await workers.uninterrupted(workers.in_thread(worker.kill))

    @contextlib.asynccontextmanager
    async def _lease(self, run: _Run) -> AsyncIterator[None]:
        """A bound lease around the block. One that is lost before anything runs is asked for again."""
        if self._session is None:
            yield
            return

        def lose(lease: Lease) -> None:
            run.lost.set_result(lease)
            if run.started and not self._can_end(run):
                _LOG.warning("lease %s is lost, and its thread runs on", lease)

        while True:
            left = min(max(0.001, run.deadline - asyncio.get_running_loop().time()), MAX_TIME_S)
            async with self._session.acquire(self._bucket, run.tokens, queue_timeout=left) as lease:
                self._session.when_lost(lease, functools.partial(lose, lease))
                if not run.lost.done():
                    yield
                    self._session.release(lease, run.ended)
                    return
            run.lost = asyncio.Future()

    async def _in_thread(self, run: _Run) -> Outcome:
        ending = workers.in_thread(functools.partial(workers.call, run.work))
        try:
            await asyncio.wait([ending], timeout=run.timeout)
            if not ending.done():
                self._counts.timed_out_total += 1
                run.given_up.set_result(None)
            return await ending
        finally:
            ending.cancel()  # without effect but at the pool's end

    async def _in_worker(self, run: _Run, worker: workers.WorkerProcess | workers.RayTask) -> Outcome:
        """The worker is dead when this raises, so that the lease can be released."""
        try:
            data = await workers.answer(worker, run.message, run.timeout, run.lost)
        except TimeoutError:
            if run.lost.done():
                lease = run.lost.result()
                raise LeaseLost(f"lease {lease} was lost while the function ran; its worker was killed") from None
            self._counts.timed_out_total += 1
            raise run.timed_out() from None
        except WorkerDied:
            self._counts.died_total += 1
            raise
        return workers.read(data, worker.name)

    async def _close(self) -> None:
        self._open = False
        for task, run in list(self._runs.items()):
            if self._can_end(run):
                task.cancel()
        if self._runs:
            await asyncio.wait(list(self._runs), timeout=self._close_timeout)
        while self._idle:
            await workers.in_thread(self._idle.pop().kill)
        if self._session is not None:
            await self._session.__aexit__(None, None, None)
        # After the session: the limiter counts the leases of threads that still run until the session's time is over.
        if self._runs:
            _LOG.warning("%d functions still run; their leases end with this session's time", len(self._runs))
            for task in list(self._runs):
                task.cancel()
            await asyncio.wait(list(self._runs))


class BlockingExecutionPool:
    """`with BlockingExecutionPool("127.0.0.1:50052", num_workers=8) as pool: pool.run(function, argument)`

    The same pool, in an event loop of a thread of its own. Takes the arguments of `ExecutionPool`; any thread may use
    it. `limiter` is an address, a `RayLimiter` or None.
    """

    def __init__(self, limiter: str | ExecutorHost | None, **settings: Any) -> None:
        """FieldErrors for a bad argument."""
        self._pool = ExecutionPool(limiter, **settings)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BlockingExecutionPool:
        ready: Future[None] = Future()
        serve = functools.partial(self._serve, ready)
        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="fairbox pool", daemon=True)
        self._thread.start()
        ready.result()
        return self

    def __exit__(self, *_: object) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Starts a run; arguments are those of `ExecutionPool.run()`. Cancelling the future ends the run."""
        if self._thread is None:
            raise PoolClosed("the pool is not open")
        return asyncio.run_coroutine_threadsafe(self._pool.run(function, *args, **kwargs), self._loop)

    def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Runs a function and returns its result; arguments and errors are those of `ExecutionPool.run()`."""
        future = self.submit(function, *args, **kwargs)
        try:
            return future.result()
        except BaseException:  # Ctrl-C ends the run too
            future.cancel()
            raise

    def statistics(self) -> PoolStatistics:
        """Counts the runs of now, and all that have ended."""
        return self._pool.statistics()

    async def _serve(self, ready: Future[None]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._pool)
            except BaseException as error:
                ready.set_exception(error)
                return
            ready.set_result(None)
            await self._stop.wait()


def _check(*values: tuple[str, object, bool, str]) -> None:
    """Raises FieldErrors unless all are good, given as name, value, whether it is good, and what is allowed."""
    if errors := [FieldError(name, f"is {value!r}, must be {may}") for name, value, good, may in values if not good]:
        raise FieldErrors(errors)
