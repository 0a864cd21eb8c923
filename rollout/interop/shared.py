"""Resources that the trainers' objects of a process share: code interpreters, one for each event loop, pair of services
and settings, clients of executors, and streams of rollout services. The first user of each opens it.

Trainers make tools cheaply, often and without ever closing them, and some make one for each trajectory, so the channels
belong to the event loop and not to the tool. Invariants: a thing is opened once, however many ask for it at the same
time; a caller that goes away takes nothing with it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from executor_service import ExecutorClient
from rollout.interop.service import ServicePlayer, ServiceUse
from rollout.interop.settings import InterpreterSettings
from rollout.tools.base import ToolResponse
from rollout.tools.code import CodeInterpreter
from rollout.tools.formats.calls import MalformedCall, ToolCall
from rollout.tools.toolbox import Toolbox

T = TypeVar("T", bound=AbstractAsyncContextManager[Any])


class _Opened:
    """Resources that one running loop has opened, and the lock under which it opens more."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.things: dict[Hashable, Any] = {}


_LOOPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = weakref.WeakKeyDictionary()
"""Only ever used from within the loop."""


class SharedTools:
    """The code interpreter for the trajectories that a trainer's own loop plays: prepared for each at its first call.

    One object serves any number of trajectories. Making it opens nothing.
    """

    def __init__(self, settings: InterpreterSettings, *, max_parallel_calls: int = 1) -> None:
        self._settings = settings
        self._max_parallel_calls = max_parallel_calls
        self._held: set[str] = set()

    async def answer(self, trajectory_id: str, calls: Sequence[ToolCall | MalformedCall]) -> list[ToolResponse]:
        """One response for each call of a turn, in order. Raises InfraError."""
        toolbox = await self._toolbox()
        if trajectory_id not in self._held:
            self._held.add(trajectory_id)
            await toolbox.create(trajectory_id, {})
        return await toolbox.answer(trajectory_id, calls, run=len(calls), time_limit_s=None)

    async def release(self, trajectory_id: str) -> None:
        """Ends what the trajectory holds. Idempotent, and right for ids that nothing was called for. Raises
        InfraError."""
        if trajectory_id in self._held:
            self._held.discard(trajectory_id)
            await (await self._toolbox()).release(trajectory_id)

    async def _toolbox(self) -> Toolbox:
        interpreter = await shared_interpreter(self._settings)
        return Toolbox([interpreter], max_parallel_calls=self._max_parallel_calls)


async def shared_interpreter(settings: InterpreterSettings) -> CodeInterpreter:
    """The running loop's interpreter with these settings. The services need not be there yet."""
    return await _shared(
        settings, lambda: CodeInterpreter(settings, executor=settings.executor, limiter=settings.limiter)
    )


async def shared_executor(target: str) -> ExecutorClient:
    """The running loop's client of the executor at `host:port`, which need not be there yet."""
    return await _shared(target, lambda: ExecutorClient(target))


async def shared_player(use: ServiceUse) -> ServicePlayer:
    """The running loop's trajectories of a rollout service, which need not be there yet."""
    return await _shared(use, lambda: ServicePlayer(use))


async def _shared(key: Hashable, make: Callable[[], T]) -> T:
    opened = _LOOPS.setdefault(asyncio.get_running_loop(), _Opened())
    if key not in opened.things:
        async with opened.lock:
            if key not in opened.things:
                opened.things[key] = await make().__aenter__()
    found: T = opened.things[key]
    return found


async def close_shared() -> None:
    """Closes what the running loop has opened. Idempotent; for programs that end tidily, and for tests."""
    opened = _LOOPS.pop(asyncio.get_running_loop(), _Opened())
    await asyncio.gather(*(each.__aexit__(None, None, None) for each in opened.things.values()))
