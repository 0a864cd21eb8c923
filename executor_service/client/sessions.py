"""Sessions from the client's side: calls, and a handle: `async with executor.session() as s: await s.run("x = 1")`.

Invariants: every call has a deadline and can be repeated safely; leaving the block of a session ends it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

from executor_service.client.calls import Calls
from executor_service.client.program import limits_with
from executor_service.errors import ExecutorError, InvalidRequest, NotFound
from executor_service.model import ExecutionResult, InputFile, Limits, SessionInfo, Snapshot
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import from_message, to_message
from limiter import LeaseLike

_log = logging.getLogger(__name__)
_CALL_S = 120.0
"""Making or ending a session takes milliseconds; this is for machines in trouble."""
_LAST_CALL_S = 5.0
"""Seconds that an error or a cancellation waits for its session to end."""


class Session:
    """A live session. Made by `ExecutorClient.session()` and `Session.branch()`."""

    def __init__(self, calls: SessionCalls, info: SessionInfo) -> None:
        self._calls = calls
        self.info = info
        """As it was when it was made."""

    @property
    def session_id(self) -> str:
        return self.info.session_id

    async def run(
        self,
        code: str,
        *,
        stdin: bytes | str = b"",
        files: Sequence[InputFile] = (),
        return_paths: Sequence[str] = (),
        limits: Limits | None = None,
        beside: bool = False,
        env: Mapping[str, str] | None = None,
        user: str = "",
        display: bool | None = None,
        lease: LeaseLike | None = None,
        request_id: str = "",
        timeout: float | None = None,
        call_timeout: float | None = None,
    ) -> ExecutionResult:
        """Runs the next cell. Cancelling interrupts it; the session's state stays.

        `display`: whether the value of the last expression is displayed; None: yes. Of `limits`, times, output and
        returned bytes can be named; `timeout` and `call_timeout` as in `ExecutorClient.execute`.

        `beside`: it is a command that runs beside the shell, at once, with `env` in addition, in an image as `user`
        (empty: the session's). Cancelling kills it. Raises SessionNotFound, SessionBusy, and what `execute` raises.
        """
        return await self._calls.execute(
            code,
            language=self.info.language,
            session_id=self.session_id,
            stdin=stdin,
            files=files,
            return_paths=return_paths,
            limits=limits,
            beside=beside,
            env=env,
            user=user,
            display=display,
            lease=lease,
            request_id=request_id,
            tenant=self.info.tenant,
            timeout=timeout,
            call_timeout=call_timeout,
        )

    async def branch(self, count: int = 1, *, owners: Sequence[str] = (), request_id: str = "") -> list[Session]:
        """Forks it: each branch goes on from the state of this moment. Raises CannotBranch, SessionBusy."""
        infos = await self._calls.branch_session(self.session_id, count, owners=owners, request_id=request_id)
        return [Session(self._calls, info) for info in infos]

    async def snapshot(self) -> Snapshot:
        """Its files as an image, in which programs and sessions can go on. Raises CannotSnapshot, SessionBusy."""
        return await self._calls.snapshot_session(self.session_id)

    async def delete(self) -> bool:
        """Ends it. False: it has ended before."""
        return await self._calls.delete_session(self.session_id)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.delete()
            return
        try:  # what ended the block is what its caller has to see, a cancellation above all
            await self._calls.delete_session(self.session_id, timeout=_LAST_CALL_S)
        except ExecutorError as late:
            _log.warning("session %s could not be ended, and lives for its idle time: %s", self.session_id, late)


class SessionCalls:
    """The part of ExecutorClient that is about sessions."""

    execute: Callable[..., Coroutine[Any, Any, ExecutionResult]]
    _calls: Calls

    @asynccontextmanager
    async def session(
        self,
        *,
        language: str = "python",
        profile: str = "",
        limits: Limits | None = None,
        idle_ttl_s: float = 0.0,
        files: Sequence[InputFile] = (),
        env: Mapping[str, str] | None = None,
        workspace_id: str = "",
        image: str = "",
        user: str = "",
        owner: str = "",
        tenant: str = "",
    ) -> AsyncIterator[Session]:
        """A session that ends with the block. Arguments and errors as for `create_session`."""
        info = await self.create_session(
            language=language,
            profile=profile,
            limits=limits,
            idle_ttl_s=idle_ttl_s,
            files=files,
            env=env,
            workspace_id=workspace_id,
            image=image,
            user=user,
            owner=owner,
            tenant=tenant,
        )
        async with Session(self, info) as session:
            yield session

    async def create_session(
        self,
        *,
        language: str = "python",
        profile: str = "",
        limits: Limits | None = None,
        idle_ttl_s: float = 0.0,
        files: Sequence[InputFile] = (),
        env: Mapping[str, str] | None = None,
        workspace_id: str = "",
        image: str = "",
        user: str = "",
        owner: str = "",
        tenant: str = "",
        request_id: str = "",
        timeout: float = _CALL_S,
    ) -> SessionInfo:
        """Starts an interpreter that keeps its state between cells; with language `bash` a shell, which may have an
        `image` as its root, and a `user` of that (empty: the image's own).

        Of `limits`, memory, processes, open files, file and disk bytes bound the session and all its branches together;
        the others are those of a cell that names none. It is deleted after `idle_ttl_s` without a cell (0: 600).
        A workspace is there for all its cells and branches, and stays while one of them lives. Raises InvalidRequest,
        NotFound (no such workspace or image here), WorkspaceTooLarge, Overloaded (the server has as many as it may) or
        ExecutorUnavailable.
        """
        request = _message(
            pb.CreateSessionRequest,
            language=language,
            profile=profile,
            limits=to_message(pb.Limits, limits_with(limits, None) or Limits()),
            idle_ttl_s=idle_ttl_s,
            files=[pb.InputFile(path=file.path, content=file.content, mode=file.mode) for file in files],
            env=env or {},
            workspace_id=workspace_id,
            image=image,
            user=user,
            owner=owner,
            tenant=tenant,
            request_id=request_id or uuid.uuid4().hex,
        )
        # Safe to repeat, as is branching: the request carries a request_id.
        response, address = await self._calls.ask(
            "CreateSession", request, timeout, among=self._calls.home_of(workspace_id, image)
        )
        session = from_message(SessionInfo, response.session)
        self._calls.homes[session.session_id] = frozenset({address})
        return session

    async def branch_session(
        self,
        session_id: str,
        count: int = 1,
        *,
        owners: Sequence[str] = (),
        request_id: str = "",
        timeout: float = _CALL_S,
    ) -> list[SessionInfo]:
        """Forks a session that rests `count` times, all or none. Raises SessionNotFound, SessionBusy, CannotBranch,
        InvalidRequest, Overloaded or ExecutorUnavailable."""
        request = _message(
            pb.BranchSessionRequest,
            session_id=session_id,
            count=count,
            owners=owners,
            request_id=request_id or uuid.uuid4().hex,
        )
        response, address = await self._calls.ask(
            "BranchSession", request, timeout, among=self._calls.home_of(session_id)
        )
        sessions = [from_message(SessionInfo, session) for session in response.sessions]
        for session in sessions:
            self._calls.homes[session.session_id] = frozenset({address})
        return sessions

    async def snapshot_session(self, session_id: str, *, timeout: float = _CALL_S) -> Snapshot:
        """Keeps the files of a session in an image, but for its work folder and /dev/shm, as an image that runs and
        sessions of the same tenant can name. Background programs go on writing meanwhile. The server keeps it as long
        as there is room. Raises SessionNotFound, SessionBusy (a cell runs), CannotSnapshot, Overloaded (those in use
        leave no room), ExecutorUnavailable or ExecutorError."""
        request = _message(pb.SnapshotSessionRequest, session_id=session_id)
        # Safe to repeat: the session stays as it is, and a snapshot that nobody knows of goes when room is needed.
        response, address = await self._calls.ask(
            "SnapshotSession", request, timeout, among=self._calls.home_of(session_id)
        )
        snapshot = from_message(Snapshot, response)
        self._calls.homes[snapshot.image] = frozenset({address})
        return snapshot

    async def delete_session(self, session_id: str, *, timeout: float = _CALL_S) -> bool:
        """Ends a session, and a cell that runs in it. False: there was none, or it has gone with its server. To be
        called as often as one likes."""
        request = _message(pb.DeleteSessionRequest, session_id=session_id)
        try:
            response, _ = await self._calls.ask(
                "DeleteSession", request, timeout, among=self._calls.home_of(session_id)
            )
        except NotFound:
            self._calls.homes.pop(session_id, None)
            return False
        self._calls.homes.pop(session_id, None)
        return bool(response.deleted)

    async def list_sessions(
        self, *, owner: str = "", tenant: str = "", page_size: int = 0, timeout: float = _CALL_S
    ) -> list[SessionInfo]:
        """The live sessions of the server, oldest first; of several servers, one after the other. Asks for page after
        page. Calls that name one of them go to its server then, whoever made it."""
        found: list[SessionInfo] = []
        for address in self._calls.fleet.addresses:
            token = ""
            while True:
                request = _message(
                    pb.ListSessionsRequest, owner=owner, tenant=tenant, page_size=page_size, page_token=token
                )
                response, _ = await self._calls.ask("ListSessions", request, timeout, among=frozenset({address}))
                sessions = [from_message(SessionInfo, each) for each in response.sessions]
                self._calls.homes.update({session.session_id: frozenset({address}) for session in sessions})
                found += sessions
                token = response.next_page_token
                if not token:
                    break
        return found


def _message(kind: type[Any], **fields: Any) -> Any:
    try:
        return kind(**fields)
    except (ValueError, TypeError) as error:  # text that is not valid Unicode, a number that does not fit
        raise InvalidRequest(f"the request can't be sent: {error}", ()) from None
