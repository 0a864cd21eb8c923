"""Sessions over gRPC: checks a request, hands it on, names every error. A thin shell; it decides nothing.

What has an id is made although the call that brought it is cancelled: it can be asked for again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from executor_service.convert import session_to_proto
from executor_service.core.dedup import DedupTable
from executor_service.core.sessions import SessionNotFound
from executor_service.model import SessionInfo
from executor_service.server.flights import SingleFlight
from executor_service.server.runs import Abandoned
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

__all__ = ["SessionService"]

_KEPT_BYTES = 1024
"""What the description of a session takes."""


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
        self._once: SingleFlight[tuple[SessionInfo, ...]] = SingleFlight(
            clock, table, lambda made: _KEPT_BYTES, Abandoned, discard=sessions.discard
        )

    async def __aenter__(self) -> SessionService:
        await self._once.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sessions.draining = True
        await self._once.__aexit__(None, None, None)  # what is being made comes to its end

    async def create(self, request: pb.CreateSessionRequest) -> pb.CreateSessionResponse:
        valid = validate_session(request, installed=self._installed, policy=self._policy, profiles=self._profiles)

        async def make() -> tuple[SessionInfo, ...]:
            return (await self._sessions.create(valid),)

        made, _ = await self._once.do(valid.request_id, _fingerprint(request), make)
        return pb.CreateSessionResponse(session=session_to_proto(made[0]))

    def permit(self, session_id: str) -> None:
        """Raises SessionNotFound for a session of another tenant than the caller's token is for."""
        if tenant := current_identity().tenant:
            self._sessions.table.permit(session_id, tenant)

    async def branch(self, request: pb.BranchSessionRequest) -> pb.BranchSessionResponse:
        valid = validate_branch(request)
        self.permit(valid.session_id)
        made, _ = await self._once.do(valid.request_id, _fingerprint(request), lambda: self._sessions.branch(valid))
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
        table = self._sessions.table
        found, after = table.page(owner=valid.owner, tenant=valid.tenant, after=valid.after, size=valid.size)
        return pb.ListSessionsResponse(sessions=map(session_to_proto, found), next_page_token=page_token(after))


def _fingerprint(request: Message) -> bytes:
    """What makes two requests with one id the same. Ids of both kinds share one table."""
    kind = request.DESCRIPTOR.name.encode()
    return hashlib.sha256(kind + b"\0" + request.SerializeToString(deterministic=True)).digest()
