"""Runs one function in a thread of its own, which can't be killed: whoever started it waits for its end.

A thread for each run, not a pool of them: starting one costs a tenth of a millisecond, and a thread that hangs must not
keep the program from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any

from limiter.pool.outcome import Outcome, call

__all__ = ["run_in_thread"]


def run_in_thread(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> asyncio.Future[Outcome]:
    """Starts the function, with the context variables of the caller; the future is done when it has ended."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(outcome: Outcome) -> None:
        if not future.done():
            future.set_result(outcome)

    def body() -> None:
        outcome = context.run(call, function, args, kwargs)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(deliver, outcome)

    threading.Thread(target=body, name="fairbox pool", daemon=True).start()
    return future
