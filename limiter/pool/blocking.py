"""The pool for programs without asyncio: the same pool in an event loop of its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from limiter.pool.errors import PoolClosed
from limiter.pool.pool import ExecutionPool, ExecutorHost
from limiter.pool.statistics import PoolStatistics

__all__ = ["BlockingExecutionPool"]

T = TypeVar("T")


class BlockingExecutionPool:
    """`with BlockingExecutionPool("127.0.0.1:50052", num_workers=8) as pool: pool.run(function, argument)`

    Takes the arguments of `ExecutionPool`. Any thread may use it. An `InProcessLimiter` belongs to another loop, so
    `limiter` is an address, a `RayLimiter` or None.
    """

    def __init__(self, limiter: str | ExecutorHost | None, **settings: Any) -> None:
        self._limiter = limiter
        self._settings = settings
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._pool: ExecutionPool | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BlockingExecutionPool:
        """FieldErrors for a bad argument."""
        self._thread = threading.Thread(target=self._serve, name="fairbox pool", daemon=True)
        self._thread.start()
        self._loop, self._stop = self._ready.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Starts a run; arguments are those of `ExecutionPool.run()`. Cancelling the future ends the run."""
        if self._thread is None or self._pool is None:
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
        """What it is doing now."""
        if self._pool is None:
            raise PoolClosed("the pool is not open")
        return self._pool.statistics()

    def _serve(self) -> None:
        async def serve() -> None:
            stop = asyncio.Event()
            async with ExecutionPool(self._limiter, **self._settings) as pool:
                self._pool = pool
                self._ready.set_result((asyncio.get_running_loop(), stop))
                await stop.wait()

        try:
            asyncio.run(serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)
