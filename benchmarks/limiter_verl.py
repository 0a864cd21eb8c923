"""What the limiter is compared against: verl's Ray actor for its sandbox tool, built as designed.

`TokenBucketWorker` and `ExecutionWorker` are as designed, faults included: a token leaks when its caller dies, and an
exception in `acquire` releases what was not held. Callers hand their functions to a threaded `ExecutionWorker`, because
waiting for a token blocks a thread; so the hop to it is part of what a caller pays. What remains without it, when the
worker's own threads ask, is measured as well.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.limiter_server import LIMIT
from benchmarks.rows import Slice, cpu_of

__all__ = ["WHY_NOT", "VerlLimiter", "verl_limiter"]

WHY_NOT = "" if importlib.util.find_spec("ray") else "ray is not installed"
"""Why it can't be measured here; empty: it can."""
_OBJECT_STORE_BYTES = 100 * 1024 * 1024


class TokenBucketWorker:
    """verl's counter."""

    def __init__(self, rate_limit: int) -> None:
        self.rate_limit = rate_limit
        self.current_count = 0
        self._semaphore = threading.Semaphore(rate_limit)

    def acquire(self) -> None:
        self._semaphore.acquire()
        self.current_count += 1

    def release(self) -> None:
        self._semaphore.release()
        self.current_count -= 1

    def get_current_count(self) -> int:
        return self.current_count

    def pid(self) -> int:
        return os.getpid()


class ExecutionWorker:
    """verl's threaded worker, and a loop that keeps it busy."""

    def __init__(self, rate_limiter: Any) -> None:
        self.rate_limit_worker = rate_limiter

    def execute(self, fn: Callable[[], None]) -> None:
        """Acquires, calls and releases."""
        import ray

        with ExitStack() as stack:
            stack.callback(self.rate_limit_worker.release.remote)
            ray.get(self.rate_limit_worker.acquire.remote())
            fn()

    def pairs(self, threads: int, seconds: float) -> tuple[int, float, float]:
        """Pairs, seconds that they took, and CPU seconds of this process."""
        end = time.monotonic() + seconds
        done = [0] * threads

        def loop(number: int) -> None:
            while time.monotonic() < end:
                self.execute(_nothing)
                done[number] += 1

        started, cpu = time.monotonic(), time.process_time()
        callers = [threading.Thread(target=loop, args=(number,)) for number in range(threads)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        return sum(done), time.monotonic() - started, time.process_time() - cpu


class VerlLimiter:
    """The two actors."""

    def __init__(self, worker: Any, pid: int) -> None:
        self.pid = pid
        """Of the process that limits."""
        self._worker = worker

    async def pair(self) -> None:
        """One execution of nothing, as a caller asks for it."""
        await self._worker.execute.remote(_nothing)

    async def measure_threads(self, threads: int, seconds: float) -> Slice:
        """The same without the hop, asked by the worker's own threads."""
        before = cpu_of(self.pid)
        done, took, client = await self._worker.pairs.remote(threads, seconds)
        return Slice(done / took, (cpu_of(self.pid) - before) / done * 1e6, client / done * 1e6)


def _nothing() -> None:
    pass


@contextlib.contextmanager
def verl_limiter(tasks: int) -> Iterator[VerlLimiter]:
    """A Ray of its own with both actors, the worker with a thread for each task; gone at the end."""
    import ray

    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        object_store_memory=_OBJECT_STORE_BYTES,
    )
    try:
        # As the decorators there.
        ray.method(concurrency_group="acquire")(TokenBucketWorker.acquire)
        ray.method(concurrency_group="release")(TokenBucketWorker.release)
        groups = {"acquire": 1, "release": 10}
        counter = ray.remote(concurrency_groups=groups)(TokenBucketWorker)
        counter = counter.options(name="rate-limiter", get_if_exists=True)
        limiter = counter.remote(LIMIT)
        worker = ray.remote(ExecutionWorker).options(max_concurrency=tasks).remote(limiter)
        yield VerlLimiter(worker, ray.get(limiter.pid.remote()))
    finally:
        ray.shutdown()
