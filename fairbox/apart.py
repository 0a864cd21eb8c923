"""Work on what strangers send, away from the event loop where it is large.

Invariants: the loop never works on more than `AT_ONCE` bytes at a time; what is large is worked on one after the other,
and so is what is very large, so that two threads at most compete with the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
AT_ONCE = 16 << 10
"""Bytes that are worked on in the loop: a thread costs more than they do."""
_HEAVY = 1 << 20
"""Bytes from which work waits for that of its kind only."""
_readers = (ThreadPoolExecutor(1, "large requests"), ThreadPoolExecutor(1, "very large requests"))


async def read_apart(size: int, work: Callable[[], T]) -> T:
    """Runs `work` on `size` bytes, in a thread if they are many, and returns its result."""
    if size <= AT_ONCE:
        return work()
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_readers[size > _HEAVY], context.run, work)
