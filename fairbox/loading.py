"""Slow work at the start of a command, such as loading a model: in a thread that nobody has to wait for.

A thread can't be ended from outside. asyncio and the interpreter wait for those of the default executor, so that Ctrl-C
would take as long as the loading; they don't wait for these.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

T = TypeVar("T")
_threads: set[threading.Thread] = set()


class Interrupted(Exception):
    """The block of `until_set` was left, because its event was set."""


@contextlib.asynccontextmanager
async def until_set(stop: asyncio.Event) -> AsyncIterator[None]:
    """Cancels what the block waits for as soon as `stop` is set, and raises Interrupted then."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()

    async def watch() -> None:
        await stop.wait()
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if watching.done() and task.uncancel() <= before:
            raise Interrupted from None
        raise
    finally:
        watching.cancel()


async def load_apart(work: Callable[[], T]) -> T:
    """Calls `work` in a thread of its own; its result, or what it raises. If the caller is cancelled, the thread goes
    on, and `leave()` ends it with the process."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    loaded: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not loaded.done():
            if error is None:
                loaded.set_result(result)  # type: ignore[arg-type]
            else:
                loaded.set_exception(error)

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = (context.run(work), None)
        except BaseException as error:  # the boundary of this thread: the caller hears of it
            outcome = (None, error)
        _threads.discard(thread)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, *outcome)

    thread = threading.Thread(target=run, name="fairbox loading", daemon=True)
    _threads.add(thread)
    thread.start()
    return await loaded


def leave(code: int) -> int:
    """Returns the exit code. If a thread of `load_apart` still runs, ends the process with it instead: the interpreter
    can't end a thread in the middle of a library without a crash."""
    if _threads:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code
