"""Code interpreters of a process: one for each event loop, pair of services and settings, opened by its first user.

Trainers make tools cheaply, often and without ever closing them, and some make one for each trajectory, so the channels
belong to the event loop and not to the tool. Invariants: an interpreter is opened once, however many ask for it at the
same time; a caller that goes away takes nothing with it; each is entered and left by one task, which `close_shared`
ends.
"""

from __future__ import annotations

import asyncio
import weakref

from rollout.interop.settings import InterpreterSettings
from rollout.tools.code_interpreter import CodeInterpreter
from rollout.tools.schema import ToolSchema

__all__ = ["close_shared", "interpreter_schema", "shared_interpreter"]


class _Opened:
    """One interpreter and the task that holds it open."""

    def __init__(self, settings: InterpreterSettings) -> None:
        self._ready: asyncio.Future[CodeInterpreter] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._owner = asyncio.create_task(self._own(settings), name="fairbox interpreter")

    @property
    def failed(self) -> bool:
        return self._owner.done()

    async def get(self) -> CodeInterpreter:
        """The interpreter, when it is open. Raises what opening it raised."""
        return await asyncio.shield(self._ready)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.gather(self._owner, return_exceptions=True)

    async def _own(self, settings: InterpreterSettings) -> None:
        try:
            async with CodeInterpreter(settings, executor=settings.executor, limiter=settings.limiter) as interpreter:
                self._ready.set_result(interpreter)
                await self._closing.wait()
        except Exception as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)
        finally:
            self._ready.cancel()


_LOOPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[InterpreterSettings, _Opened]] = (
    weakref.WeakKeyDictionary()
)
"""What each running loop has opened. Only ever used from within that loop."""


def interpreter_schema(settings: InterpreterSettings) -> ToolSchema:
    """The signature that the model is shown with these settings. Opens nothing."""
    return CodeInterpreter(settings, executor=settings.executor, limiter=settings.limiter).schema


async def shared_interpreter(settings: InterpreterSettings) -> CodeInterpreter:
    """The running loop's interpreter with these settings. The services need not be there yet."""
    opened = _LOOPS.setdefault(asyncio.get_running_loop(), {})
    if settings not in opened or opened[settings].failed:
        opened[settings] = _Opened(settings)
    return await opened[settings].get()


async def close_shared() -> None:
    """Closes what the running loop has opened. Idempotent; for programs that end tidily, and for tests."""
    opened = _LOOPS.pop(asyncio.get_running_loop(), {})
    await asyncio.gather(*(each.close() for each in opened.values()))
