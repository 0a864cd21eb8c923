"""What the trainers' objects of a process share: code interpreters, one for each event loop, pair of services and
settings, and clients of executors. Each is opened by its first user.

Trainers make tools cheaply, often and without ever closing them, and some make one for each trajectory, so the channels
belong to the event loop and not to the tool. Invariants: a thing is opened once, however many ask for it at the
same time; a caller that goes away takes nothing with it; each is entered and left by one task, which `close_shared`
ends.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from executor_service import ExecutorClient
from rollout.interop.settings import InterpreterSettings
from rollout.tools.code_interpreter import CodeInterpreter
from rollout.tools.schema import ToolSchema

__all__ = ["close_shared", "interpreter_schema", "shared_executor", "shared_interpreter"]

T = TypeVar("T")


class _Opened(Generic[T]):
    """One thing and the task that holds it open."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._ready: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._owner = asyncio.create_task(self._own(make), name="fairbox shared")

    @property
    def failed(self) -> bool:
        return self._owner.done()

    async def get(self) -> T:
        """The thing, when it is open. Raises what opening it raised."""
        return await asyncio.shield(self._ready)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.gather(self._owner, return_exceptions=True)

    async def _own(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        try:
            async with make() as opened:
                self._ready.set_result(opened)
                await self._closing.wait()
        except Exception as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)
        finally:
            self._ready.cancel()


_LOOPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Opened[Any]]] = weakref.WeakKeyDictionary()
"""What each running loop has opened. Only ever used from within that loop."""


def interpreter_schema(settings: InterpreterSettings) -> ToolSchema:
    """The signature that the model is shown with these settings. Opens nothing."""
    return CodeInterpreter(settings, executor=settings.executor, limiter=settings.limiter).schema


async def shared_interpreter(settings: InterpreterSettings) -> CodeInterpreter:
    """The running loop's interpreter with these settings. The services need not be there yet."""
    return await _shared(
        settings, lambda: CodeInterpreter(settings, executor=settings.executor, limiter=settings.limiter)
    )


async def shared_executor(target: str) -> ExecutorClient:
    """The running loop's client of the executor at `host:port`, which need not be there yet."""
    return await _shared(target, lambda: ExecutorClient(target))


async def _shared(key: Hashable, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
    opened = _LOOPS.setdefault(asyncio.get_running_loop(), {})
    if key not in opened or opened[key].failed:
        opened[key] = _Opened(make)
    found: T = await opened[key].get()
    return found


async def close_shared() -> None:
    """Closes what the running loop has opened. Idempotent; for programs that end tidily, and for tests."""
    opened = _LOOPS.pop(asyncio.get_running_loop(), {})
    await asyncio.gather(*(each.close() for each in opened.values()))
