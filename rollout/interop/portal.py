"""An event loop in a thread of its own, for trainers whose environments are synchronous.

Invariants: there is one for a process, started by its first use, and a new one after a fork; every call has a deadline,
and one that misses it is cancelled; at the end of the process what was opened in it is closed.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from rollout.interop.shared import close_shared

T = TypeVar("T")

CLOSE_WITHIN_S = 10.0
"""Seconds for closing channels, when the process ends."""


class LoopThread:
    """A running loop. `call` may be used from any thread but its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fairbox loop", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], *, timeout: float) -> T:
        """Runs `work` there and returns its result. Raises what it raises, and TimeoutError after `timeout` seconds."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout:g} s") from None
        finally:
            future.cancel()  # of no effect where it has ended

    def close(self) -> None:
        """Closes what is open in it, and ends it. Idempotent."""
        if self._thread.is_alive():
            try:
                self.call(_end(), timeout=CLOSE_WITHIN_S)
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(CLOSE_WITHIN_S)
                if not self._thread.is_alive():
                    self._loop.close()


async def _end() -> None:
    """Closes the channels, and what is left of calls with them: gRPC ends its own a little later."""
    await close_shared()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


_LOCK = threading.Lock()
_THREADS: dict[int, LoopThread] = {}
"""Loops by process id: a forked child has no threads of its parent."""


def process_loop() -> LoopThread:
    """This process's loop."""
    with _LOCK:
        thread = _THREADS.get(os.getpid())
        if thread is None:
            thread = _THREADS[os.getpid()] = LoopThread()
            atexit.register(thread.close)
        return thread
