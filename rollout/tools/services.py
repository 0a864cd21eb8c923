"""The clients that the tools of a process share: one channel each to executor and limiter, whatever number of tools.

Invariants: a client is opened at most once and closed when the block is left; the limiter is not connected to unless a
tool runs under its leases.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from executor_service import ExecutorClient
from limiter import LimiterClient

__all__ = ["ToolServices"]


class ToolServices:
    """`async with ToolServices(executor="host:port", limiter="host:port") as services`."""

    def __init__(self, *, executor: str, limiter: str) -> None:
        self.executor_target = executor
        self.limiter_target = limiter
        self.executor = ExecutorClient(executor)
        self._limiter: LimiterClient | None = None
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.executor)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limiter = None
        await self._stack.aclose()

    async def open_limiter(self) -> LimiterClient:
        """The limiter's client; tools call this when they are entered."""
        if self._limiter is None:
            self._limiter = LimiterClient(self.limiter_target)
            await self._stack.enter_async_context(self._limiter)
        return self._limiter
