"""Asks a limiter and executors what they are doing; what does not answer becomes one sentence.

Every call has a deadline; the channels live as long as the client, so that watching costs no new connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

import grpc
import grpc.aio

from executor_service.v1 import executor_pb2, executor_pb2_grpc
from fairbox.channels import open_channel
from fairbox.errors import FairboxError
from fairbox.security import client_security
from limiter.v1 import limiter_pb2, limiter_pb2_grpc

if TYPE_CHECKING:
    from executor_service.v1.executor_pb2_grpc import ExecutorServiceAsyncStub as Executor
    from limiter.v1.limiter_pb2_grpc import LimiterAdminServiceAsyncStub as LimiterAdmin

__all__ = ["ExecutorStatus", "LimiterStatus", "Status", "StatusClient"]

T = TypeVar("T")

HOLDERS = 1_000
"""Leases that are asked for, the oldest first."""


@dataclass(frozen=True, slots=True)
class LimiterStatus:
    """What one limiter answered."""

    target: str
    problem: str = ""
    """One sentence when it did not answer."""
    status: limiter_pb2.GetStatusResponse | None = None
    leases: tuple[limiter_pb2.LeaseInfo, ...] = ()
    """The oldest, at most 1,000; empty where it does not lead."""
    leader: str = ""
    """Where it does not lead: what it says about who does."""


@dataclass(frozen=True, slots=True)
class ExecutorStatus:
    """What one executor answered."""

    target: str
    problem: str = ""
    """One sentence when it did not answer."""
    status: executor_pb2.GetStatusResponse | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """Everything at one moment."""

    limiter: LimiterStatus | None
    executors: tuple[ExecutorStatus, ...]

    @property
    def complete(self) -> bool:
        """Whether everybody answered."""
        limiter = self.limiter is None or not self.limiter.problem
        return limiter and not any(each.problem for each in self.executors)


class _NoAnswerError(FairboxError):
    """A call that failed; the text says how."""


class StatusClient:
    """`async with StatusClient(limiter, executors, timeout_s=5) as client: await client.ask()`.

    `limiter` is the address of its admin service; empty: it is not asked. TLS and tokens are those of the environment
    (`fairbox.security.client_security`): an operator's for the limiter, a client's or else an operator's for executors.
    """

    def __init__(self, limiter: str, executors: Sequence[str], *, timeout_s: float) -> None:
        self._limiter_target = limiter
        self._executor_targets = tuple(executors)
        self._timeout_s = timeout_s
        self._stack = contextlib.AsyncExitStack()
        self._limiter: LimiterAdmin | None = None
        self._executors: dict[str, Executor] = {}

    async def __aenter__(self) -> StatusClient:
        operator, executors = client_security(admin=True), client_security()
        if not executors.token_file:  # operators may ask executors too
            executors = operator
        async with contextlib.AsyncExitStack() as stack:
            if self._limiter_target:
                channel = await stack.enter_async_context(open_channel(self._limiter_target, security=operator))
                self._limiter = cast("LimiterAdmin", limiter_pb2_grpc.LimiterAdminServiceStub(channel))
            for target in self._executor_targets:
                channel = await stack.enter_async_context(open_channel(target, security=executors))
                self._executors[target] = cast("Executor", executor_pb2_grpc.ExecutorServiceStub(channel))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._stack.aclose())

    async def ask(self) -> Status:
        """Asks everybody at once. Never fails: who does not answer is described."""
        limiter, executors = await asyncio.gather(
            self._ask_limiter(),
            asyncio.gather(*(self._ask_executor(target, stub) for target, stub in self._executors.items())),
        )
        return Status(limiter, tuple(executors))

    async def _ask_limiter(self) -> LimiterStatus | None:
        stub, target = self._limiter, self._limiter_target
        if stub is None:
            return None
        try:
            status = await self._answer(stub.GetStatus(limiter_pb2.GetStatusRequest(), timeout=self._timeout_s))
        except _NoAnswerError as error:
            return LimiterStatus(target, problem=f"limiter on {target} {error}")
        request = limiter_pb2.ListLeasesRequest(page_size=HOLDERS)
        try:
            leases = await self._answer(stub.ListLeases(request, timeout=self._timeout_s))
        except _NoAnswerError as error:
            return LimiterStatus(target, status=status, leader=str(error))
        return LimiterStatus(target, status=status, leases=tuple(leases.leases))

    async def _ask_executor(self, target: str, stub: Executor) -> ExecutorStatus:
        try:
            status = await self._answer(stub.GetStatus(executor_pb2.GetStatusRequest(), timeout=self._timeout_s))
        except _NoAnswerError as error:
            return ExecutorStatus(target, problem=f"executor on {target} {error}")
        return ExecutorStatus(target, status=status)

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise _NoAnswerError(_sentence(error, self._timeout_s)) from None


def _sentence(error: grpc.aio.AioRpcError, timeout_s: float) -> str:
    """How a call failed, to be put after the name of who was asked."""
    details = " ".join((error.details() or "").split())
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"did not answer within {timeout_s:g} s"
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "is something else: it does not know this service (limiter: its admin port, 50053 by default)"
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        # gRPC's own text is long, and the last part of it says why.
        return f"is not available: {details.rpartition(': ')[2] if 'last error: ' in details else details}"
    return f"refused: {error.code().name}: {details}"
