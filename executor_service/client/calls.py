"""Calls at one of the executors behind a target: which one, how often, and what an error means.

Invariants: every call has a deadline; what has a session or a workspace is asked of the server that made it; a call is
repeated only where nothing of it can have happened, or happens once all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import grpc
import grpc.aio
from cachetools import LRUCache
from opentelemetry.trace import Span

from executor_service.client.executors import Fleet, Member, told_when_closed
from executor_service.errors import DRAINING, ExecutorError, NotFound, error_of_call
from fairbox.net.channels import open_channel
from fairbox.net.grpc_errors import error_reason, never_sent
from fairbox.security import ClientSecurity
from fairbox.telemetry import tracing

_ATTEMPTS = 3
"""The third is for one who finds two servers that are ending or new, as in an update of all."""
_MOST_HOMES = 100_000
"""The least recently used go first. Sessions are removed when they end."""


class Calls:
    """`async with Calls(target, security) as calls: await calls.ask("GetStatus", request, 10.0)`."""

    def __init__(self, target: str, security: ClientSecurity) -> None:
        for each in target.split(","):
            security.check_target(each.strip())
        self.target = target
        self._security = security
        self._fleet: Fleet | None = None
        self.homes: LRUCache[str, frozenset[str]] = LRUCache(_MOST_HOMES)
        """Session, workspace or snapshot -> the server that made it. What is not known here, because another process
        made it, is asked for anywhere, and whoever does not have it says so."""

    async def __aenter__(self) -> Calls:
        fleet = Fleet(self.target, lambda address, options: open_channel(address, options, self._security))
        self._fleet = await fleet.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            await fleet.__aexit__(kind, error, trace)

    @property
    def fleet(self) -> Fleet:
        """The servers."""
        if self._fleet is None:
            raise RuntimeError("ExecutorClient is used outside its `async with` block")
        return self._fleet

    def home_of(self, *names: str) -> frozenset[str] | None:
        """The servers that may be asked for the first of these sessions, workspaces and snapshots that is known; None:
        all."""
        return next((self.homes[name] for name in names if name in self.homes), None)

    @asynccontextmanager
    async def reached(self, deadline: float, *, among: frozenset[str] | None) -> AsyncIterator[Member]:
        """A server that can be reached, for one stream, before `deadline` (the loop's time). The last one that is tried
        is given in any case: gRPC then says what is wrong. Trying is safe to repeat: nothing is sent meanwhile."""
        fleet, tried = self.fleet, list[str]()
        for attempt in range(1, _ATTEMPTS + 1):
            with fleet.take(among=among, avoid=tried) as member:
                if await member.connected(deadline) or attempt == _ATTEMPTS:
                    fleet.check_open()
                    yield member
                    return
                tried.append(member.address)

    async def ask(
        self,
        name: str,
        request: Any,
        timeout: float,
        *,
        among: frozenset[str] | None = None,
        moves: bool = False,
        anywhere: bool = False,
    ) -> tuple[Any, str]:
        """Calls a method, again where the connection may have been closed under the call; the answer, and who gave it.

        `among`: the servers that may be asked; None: all. With `anywhere` all others may be asked as well, when those
        are not reached or are ending. Another attempt is made at another server where `moves` says
        that a second one can't run what the first one may run, or where the first was not reached, or is ending.
        """
        with tracing.span(
            f"executor.{name}", request_id=getattr(request, "request_id", ""), target=self.target
        ) as span:
            try:
                return await self._attempts(span, name, request, timeout, among=among, moves=moves, anywhere=anywhere)
            except grpc.aio.AioRpcError as error:
                span.set_attribute("fairbox.status", error.code().name)
                raise self._error(error, None if anywhere else among) from error

    async def _attempts(
        self,
        span: Span,
        name: str,
        request: Any,
        timeout: float,
        *,
        among: frozenset[str] | None,
        moves: bool,
        anywhere: bool,
    ) -> tuple[Any, str]:
        loop = asyncio.get_running_loop()
        deadline, fleet, tried, metadata = loop.time() + timeout, self.fleet, list[str](), tracing.carried()
        for attempt in range(1, _ATTEMPTS + 1):
            with fleet.take(among=among, avoid=tried) as member:
                if not await member.connected(deadline) and attempt < _ATTEMPTS:
                    among = None if anywhere else among
                    tried.append(member.address)
                    continue
                fleet.check_open()
                call = getattr(member.stub, name)(request, timeout=deadline - loop.time(), metadata=metadata)
                try:
                    with told_when_closed(call, self.target):
                        response = await call
                        member.answered(await call.trailing_metadata())
                    return response, member.address
                except grpc.aio.AioRpcError as error:
                    member.refused(error)
                    untouched = _untouched(error)
                    last = attempt == _ATTEMPTS or (attempt > 1 and not (untouched or moves))
                    if last or not (untouched or error.code() is grpc.StatusCode.UNAVAILABLE):
                        raise
                    span.set_attribute("fairbox.repeated", True)
                elsewhere = moves or untouched
                if member.alone or not elsewhere:
                    await member.settled(deadline)
                if elsewhere:
                    among = None if anywhere and untouched else among
                    tried.append(member.address)
                else:
                    among, tried = frozenset({member.address}), []
        raise AssertionError("the last attempt returns or raises")

    def _error(self, error: grpc.aio.AioRpcError, among: frozenset[str] | None) -> ExecutorError:
        """A server that is not there and not listed has gone, with all that it had."""
        unreachable = error.code() is grpc.StatusCode.UNAVAILABLE
        if unreachable and among and among.isdisjoint(self.fleet.addresses):
            return NotFound(f"executor on {self.target}: {', '.join(among)}, which had it, is gone")
        return error_of_call(error, self.target)


def _untouched(error: grpc.aio.AioRpcError) -> bool:
    """True if the server has begun nothing of the call: it could not be sent, or the server is ending. One that has
    drained cancels what comes after; nothing else of ours answers with that."""
    return never_sent(error) or error_reason(error)[0] == DRAINING or error.code() is grpc.StatusCode.CANCELLED
