"""Sessions over gRPC: checks a request, hands it on, names every error. A thin shell; it decides nothing.

`Once`: the work belongs to it and not to the call that brought it, and goes on when that is cancelled;
nothing is left when the block is left.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from executor_service.convert import session_to_proto
from executor_service.core.dedup import DedupTable, Done, Gone, Join
from executor_service.core.sessions import SessionNotFound
from executor_service.model import SessionInfo
from executor_service.server.runs import ResultGone
from executor_service.server.sessions import Sessions
from executor_service.session_validation import (
    page_token,
    validate_branch,
    validate_delete,
    validate_list,
    validate_session,
)
from executor_service.v1 import executor_pb2 as pb
from executor_service.validation import LimitPolicy
from fairbox.clock import Clock
from fairbox.security import current_identity

__all__ = ["Once", "SessionService"]

T = TypeVar("T")
_KEPT_BYTES = 1024
"""What the description of a session takes."""


@dataclass(eq=False, slots=True)
class _Work(Generic[T]):
    task: asyncio.Task[T]
    waiters: int = 0


class Once(Generic[T]):
    """`discard` is given what was made for calls that have gone and can't come back, because they had no id."""

    def __init__(self, clock: Clock, discard: Callable[[T], None], table: DedupTable[_Work[T], T]) -> None:
        self._clock = clock
        self._discard = discard
        self._table = table
        self._running: set[_Work[T]] = set()

    async def __aenter__(self) -> Once[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._running:
            await asyncio.wait([work.task for work in self._running])

    async def do(self, request_id: str, fingerprint: bytes, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `make`, or of the work with the same id. Raises IdReused, ResultGone, and what it raises."""
        work: _Work[T] | None = None
        if request_id:
            known = self._table.look_up(request_id, fingerprint, self._clock.now())
            if isinstance(known, Done):
                return known.result
            if isinstance(known, Gone):
                raise ResultGone
            if isinstance(known, Join):
                work = known.run
        if work is None:
            work = self._begin(request_id, fingerprint, make)
        work.waiters += 1
        try:
            return await asyncio.shield(work.task)
        finally:
            work.waiters -= 1

    def _begin(self, request_id: str, fingerprint: bytes, make: Callable[[], Coroutine[Any, Any, T]]) -> _Work[T]:
        work = _Work(asyncio.create_task(make(), name="work done once"))
        self._running.add(work)
        if request_id:
            self._table.begin(request_id, fingerprint, work)
        work.task.add_done_callback(lambda _: self._settle(request_id, work))
        return work

    def _settle(self, request_id: str, work: _Work[T]) -> None:
        self._running.remove(work)
        failed = work.task.cancelled() or work.task.exception() is not None
        if request_id and failed:
            self._table.abandon(request_id)  # nothing was made: the id is free again
        elif request_id:
            self._table.end(request_id, work.task.result(), _KEPT_BYTES, self._clock.now())
        elif not work.waiters and not failed:
            self._discard(work.task.result())


if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]


class SessionService:
    """The handlers of ExecutorService that are about sessions. `async with` it before the server serves."""

    def __init__(
        self,
        sessions: Sessions,
        clock: Clock,
        *,
        policy: LimitPolicy,
        installed: Collection[str],
        profiles: Collection[str],
        table: DedupTable[Any, tuple[SessionInfo, ...]],
    ) -> None:
        self._sessions = sessions
        self._policy = policy
        self._installed = installed
        self._profiles = profiles
        self._once: Once[tuple[SessionInfo, ...]] = Once(clock, sessions.discard, table)

    async def __aenter__(self) -> SessionService:
        await self._once.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sessions.draining = True
        await self._once.__aexit__(kind, error, trace)

    async def create(self, request: pb.CreateSessionRequest) -> pb.CreateSessionResponse:
        valid = validate_session(request, installed=self._installed, policy=self._policy, profiles=self._profiles)

        async def make() -> tuple[SessionInfo, ...]:
            return (await self._sessions.create(valid),)

        made = await self._once.do(valid.request_id, _fingerprint(request), make)
        return pb.CreateSessionResponse(session=session_to_proto(made[0]))

    def permit(self, session_id: str) -> None:
        """Raises SessionNotFound for a session of another tenant than the caller's token is for."""
        if tenant := current_identity().tenant:
            self._sessions.permit(session_id, tenant)

    async def branch(self, request: pb.BranchSessionRequest) -> pb.BranchSessionResponse:
        valid = validate_branch(request)
        self.permit(valid.session_id)
        made = await self._once.do(valid.request_id, _fingerprint(request), lambda: self._sessions.branch(valid))
        return pb.BranchSessionResponse(sessions=map(session_to_proto, made))

    async def delete(self, request: pb.DeleteSessionRequest) -> pb.DeleteSessionResponse:
        session_id = validate_delete(request)
        try:
            self.permit(session_id)
        except SessionNotFound:
            return pb.DeleteSessionResponse(deleted=False)
        return pb.DeleteSessionResponse(deleted=await self._sessions.delete(session_id))

    async def list(self, request: pb.ListSessionsRequest) -> pb.ListSessionsResponse:
        valid = validate_list(request)
        found, after = self._sessions.page(owner=valid.owner, tenant=valid.tenant, after=valid.after, size=valid.size)
        return pb.ListSessionsResponse(sessions=map(session_to_proto, found), next_page_token=page_token(after))


def _fingerprint(request: Message) -> bytes:
    """What makes two requests with one id the same. Ids of both kinds share one table."""
    kind = request.DESCRIPTOR.name.encode()
    return hashlib.sha256(kind + b"\0" + request.SerializeToString(deterministic=True)).digest()
