"""The pool: a bounded queue, a fixed number of workers, and a bound lease around each function that runs.

Invariants: a function starts only under a lease that the limiter vouches for at that moment; the lease is released when
the function has provably ended, and not before; a run waits for its worker first and for its lease second, so that no
lease is held idle; every run is a task that the pool owns, whatever becomes of its caller.

It is no sandbox: functions run with everything that this program may do. Untrusted code belongs to an executor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from limiter.client import ExecutorSession, Lease, QueueTimeout
from limiter.pool.counters import Counters
from limiter.pool.errors import LeaseLost, PoolClosed, PoolFull, WorkerDied
from limiter.pool.outcome import Outcome
from limiter.pool.process import WorkerProcess, request
from limiter.pool.processes import Processes
from limiter.pool.run import Run
from limiter.pool.settings import MAX_MESSAGE_BYTES, PoolSettings, WorkerKind, check_times
from limiter.pool.statistics import PoolStatistics
from limiter.pool.thread import run_in_thread
from limiter.pool.waiting import uninterrupted

__all__ = ["ExecutionPool", "ExecutorHost"]

T = TypeVar("T")
_LOG = logging.getLogger("limiter.pool")


class ExecutorHost(Protocol):
    """Anything that opens executors' sessions: `InProcessLimiter`, `RayLimiter`."""

    def executor(self, *, executor_id: str = "") -> ExecutorSession:
        """A session, not entered yet."""
        ...


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
        kind: str = WorkerKind.THREAD,
        bucket: str = "code",
        max_queued: int = 10_000,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        close_timeout: float = 30.0,
        name: str = "",
    ) -> None:
        """`limiter`: address of a limiter's server, or a host that is entered, or None: `num_workers` is the only
        limit. `max_queued`: runs that may wait for a worker. `max_message_bytes`: a pickled function with its arguments
        or result. `close_timeout`: how long, in seconds, `async with` waits at its end for threads that still run.
        FieldErrors for a bad value, ConfigError where processes are asked for without the extra `pool`."""
        self._settings = PoolSettings(num_workers, kind, bucket, max_queued, max_message_bytes, close_timeout)
        self._settings.check()
        self._limiter = limiter
        self._name = name
        self._session: ExecutorSession | None = None
        self._workers = asyncio.Semaphore(num_workers)
        self._tasks: dict[asyncio.Task[Outcome], Run] = {}
        self._open = False
        self._counters = Counters()
        self._processes = Processes(max_message_bytes, self._counters)

    async def __aenter__(self) -> ExecutionPool:
        if isinstance(self._limiter, str):
            self._session = ExecutorSession(self._limiter, executor_id=self._name)
        elif self._limiter is not None:
            self._session = self._limiter.executor(executor_id=self._name)
        if self._session is not None:
            await self._session.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends what waits and what runs in processes, and waits for threads. Callers get PoolClosed."""
        closing = asyncio.create_task(self._close())
        await uninterrupted(closing)
        closing.result()

    def statistics(self) -> PoolStatistics:
        """What it is doing now."""
        return self._counters.facts(self._settings.num_workers)

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
        `LimiterClient.lease()` raises. A caller that is cancelled ends the run: a process is killed before its lease is
        freed; a thread runs on, and keeps worker and lease until its end.
        """
        check_times(timeout, queue_timeout)
        settings = self._settings
        if not self._open:
            raise PoolClosed("the pool is not open")
        if len(self._tasks) >= settings.num_workers + settings.max_queued:
            raise PoolFull(f"{len(self._tasks) - settings.num_workers} runs wait in the pool, which is all that may")
        message = b""
        if settings.kind == WorkerKind.PROCESS:
            message = request(function, args, kwargs, max_bytes=settings.max_message_bytes)
        deadline = asyncio.get_running_loop().time() + queue_timeout
        run = Run(function, args, kwargs, message, tokens, timeout, deadline)
        task = asyncio.create_task(self._perform(run))
        self._tasks[task] = run
        task.add_done_callback(self._tasks.pop)
        return cast("T", await self._outcome(run, task))

    async def _outcome(self, run: Run, task: asyncio.Task[Outcome]) -> Any:
        """What `run()` returns or raises."""
        either: set[asyncio.Future[Any]] = {task, run.given_up}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            run.count_cancelled(self._counters)
            if not run.unstoppable:
                task.cancel()
                await uninterrupted(task)
            raise
        if task.cancelled():
            raise PoolClosed("the pool was closed")
        if task.done():
            return task.result().get()
        raise run.given_up.result()

    # One run

    async def _perform(self, run: Run) -> Outcome:
        counters = self._counters
        with counters.counted("queued"):
            try:
                async with asyncio.timeout_at(run.deadline):
                    await self._workers.acquire()
            except TimeoutError:
                raise QueueTimeout("no worker of the pool was free in time") from None
        try:
            if self._settings.kind == WorkerKind.THREAD:
                async with self._lease(run) as lease:
                    return await self._in_thread(run, lease)
            return await self._with_process(run)
        finally:
            self._workers.release()

    @contextlib.asynccontextmanager
    async def _lease(self, run: Run) -> AsyncIterator[Lease | None]:
        """A bound lease around the block."""
        if self._session is None:
            yield None
            return
        left = max(0.001, run.deadline - asyncio.get_running_loop().time())
        async with contextlib.AsyncExitStack() as stack:
            with self._counters.counted("acquiring"):
                context = self._session.acquire(self._settings.bucket, run.tokens, queue_timeout=min(left, 86_400.0))
                lease = await stack.enter_async_context(context)
            yield lease

    async def _in_thread(self, run: Run, lease: Lease | None) -> Outcome:
        loop, counters = asyncio.get_running_loop(), self._counters
        if self._session is not None and lease is not None:
            self._check(lease)
            self._session.when_lost(lease, lambda: _LOG.warning("lease %s is lost, and its thread runs on", lease))
        run.unstoppable = True
        with counters.counted("running"):
            ending = run_in_thread(run.function, run.args, run.kwargs)
            if run.timeout is not None:
                timer = loop.call_later(run.timeout, run.give_up, counters)
                ending.add_done_callback(lambda _: timer.cancel())
            return counters.ended(await ending)

    async def _with_process(self, run: Run) -> Outcome:
        worker = await self._processes.take()  # before the lease is asked for, which then is not held meanwhile
        try:
            async with self._lease(run) as lease:
                return await self._in_process(run, worker, lease)
        finally:
            await self._processes.put_back(worker)

    async def _in_process(self, run: Run, worker: WorkerProcess, lease: Lease | None) -> Outcome:
        """Whatever ends it other than the function's own end, the process is dead when it returns or raises, so that
        the lease can be released."""
        lost: list[Lease] = []
        if self._session is not None and lease is not None:
            self._check(lease)

            def lose() -> None:
                lost.append(lease)
                worker.signal()

            self._session.when_lost(lease, lose)
        counters = self._counters
        try:
            with counters.counted("running"):
                run.started = True
                async with asyncio.timeout(run.timeout):
                    return counters.ended(await worker.run(run.message))
        except BaseException as error:
            await self._processes.kill(worker)
            if lost:
                counters.lost_total += 1
                raise LeaseLost(f"lease {lost[0]} was lost while the function ran; its process was killed") from None
            if isinstance(error, TimeoutError):
                raise run.timed_out(counters) from None
            counters.died_total += isinstance(error, WorkerDied)
            raise

    def _check(self, lease: Lease) -> None:
        if self._session is not None and not self._session.vouches(lease):
            self._counters.lost_total += 1
            raise LeaseLost(f"lease {lease} was lost before the function started")

    async def _close(self) -> None:
        self._open = False
        for task, run in list(self._tasks.items()):
            if not run.unstoppable:
                task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=self._settings.close_timeout)
        await self._processes.close()
        if self._session is not None:
            await self._session.__aexit__(None, None, None)
        # After the session, so that leases of threads that still run are not released: the limiter counts them until
        # the session's time has run out.
        if self._tasks:
            _LOG.warning("%d threads still run; their leases end with this session's time", len(self._tasks))
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
