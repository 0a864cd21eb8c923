"""ExecutorService over gRPC: checks a request, hands it on, names every error. A thin shell; it decides nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from executor_service.client.balance import LOAD_KEY
from executor_service.errors import SessionNotFound
from executor_service.grading.model import VerifyResult
from executor_service.grading.request import VerifyRequest
from executor_service.grading.validation import validate_verify
from executor_service.images.fetching import ImageFetches
from executor_service.images.table import Images
from executor_service.model import ExecutionResult, RunRequest, SessionInfo
from executor_service.rpc.access import own
from executor_service.rpc.problems import abort
from executor_service.rpc.replies import reply_with, verify_reply
from executor_service.rpc.streams import stream_execution, stream_verification
from executor_service.rpc.workspaces import WorkspaceCalls
from executor_service.runs.dedup import DedupTable
from executor_service.runs.flights import Flight, SingleFlight
from executor_service.runs.queue import Abandoned, ExecutionQueue, Follower
from executor_service.sandbox.zygote import Profile
from executor_service.sessions.sessions import Sessions
from executor_service.sessions.snapshots import Snapshots
from executor_service.v1 import executor_pb2 as pb
from executor_service.v1 import executor_pb2_grpc
from executor_service.verification.verify import CaseFollower, Verifier
from executor_service.wire.programs import to_message
from executor_service.wire.sessions import validate_branch, validate_list, validate_session, validate_session_id
from executor_service.wire.validation import LimitPolicy, validate
from fairbox.clock import Clock
from fairbox.errors import FieldError, FieldErrors
from fairbox.net.reading import check_apart
from fairbox.security import current_identity

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

T = TypeVar("T")
R = TypeVar("R")
Made = tuple[SessionInfo, ...]
SERVICE_NAME = "executor_service.v1.ExecutorService"
_SESSION_BYTES = 1024
"""Bytes that a session's description takes while it is kept to answer repeated requests."""


def sessions_once(sessions: Sessions, clock: Clock, table: DedupTable[Flight[Made], Made]) -> SingleFlight[Made]:
    """Makes the sessions of one request once. What has an id is made although the call that brought it is cancelled: it
    can be asked for again."""
    return SingleFlight(clock, table, lambda made: _SESSION_BYTES, Abandoned, discard=sessions.discard)


def _answered(method: Callable[[Any, R, Context], Awaitable[T]]) -> Callable[[Any, R, Context], Awaitable[T]]:
    """Ends the call with the status of the error that its method raises."""

    @wraps(method)
    async def answered(service: Any, request: R, context: Context) -> T:
        try:
            return await method(service, request, context)
        except Exception as error:  # the boundary: each gets its status
            await abort(context, error)

    return answered


class ExecutorService(executor_pb2_grpc.ExecutorServiceServicer):
    def __init__(
        self,
        runs: ExecutionQueue,
        verifier: Verifier,
        sessions: Sessions,
        once: SingleFlight[Made],
        policy: LimitPolicy,
        installed: Collection[str],
        profiles: Mapping[str, Profile],
        workspaces: WorkspaceCalls,
        images: Images,
        snapshots: Snapshots,
        fetches: ImageFetches,
        status: Callable[[], pb.GetStatusResponse],
    ) -> None:
        self._runs = runs
        self._verifier = verifier
        self._sessions = sessions
        self._once = once
        self._policy = policy
        self._installed = installed
        self._profiles = frozenset(profiles)
        self._session_profiles = {name for name, profile in profiles.items() if not profile.lean}
        self._workspaces = workspaces
        self._images = images
        self._snapshots = snapshots
        self._fetches = fetches
        self._status = status

    @_answered
    async def ExecuteCode(self, request: pb.ExecuteCodeRequest, context: Context) -> Any:
        result = await self._execute(*await self._check(request))
        self._tell_load(context)
        return await reply_with(pb.ExecuteCodeResponse, result)

    @_answered
    async def VerifyCode(self, request: pb.VerifyCodeRequest, context: Context) -> Any:
        result = await self._verify(request, await self._check_verification(request))
        self._tell_load(context)
        return await verify_reply(result)

    @_answered
    async def StreamExecution(self, request: pb.StreamExecutionRequest, context: Context) -> None:  # type: ignore[override]
        with _named("execution"):
            checked = await self._check(request.execution)
        await stream_execution(self._execute, *checked, context.write)

    @_answered
    async def StreamVerification(  # type: ignore[override]
        self, request: pb.StreamVerificationRequest, context: Context
    ) -> None:
        with _named("verification"):
            valid = await self._check_verification(request.verification)
        await stream_verification(partial(self._verify, request.verification, valid), context.write)

    @_answered
    async def PrepareWorkspace(
        self, request: pb.PrepareWorkspaceRequest, context: Context
    ) -> pb.PrepareWorkspaceResponse:
        return await self._workspaces.prepare(own(request))

    @_answered
    async def PrepareImage(self, request: pb.PrepareImageRequest, context: Context) -> pb.PrepareImageResponse:
        fetched = await self._fetches.prepare(request.reference)
        image = fetched.image
        return pb.PrepareImageResponse(
            name=fetched.name,
            image=image.image_id,
            size_bytes=image.bytes,
            cached=fetched.cached,
            served_by=self._snapshots.name,
        )

    @_answered
    async def CreateSession(self, request: pb.CreateSessionRequest, context: Context) -> pb.CreateSessionResponse:
        own(request)
        profiles = self._session_profiles
        check = partial(validate_session, request, installed=self._installed, policy=self._policy, profiles=profiles)
        valid = await check_apart(check)

        async def make() -> Made:
            return (await self._sessions.create(valid),)

        made, _ = await self._once.do(valid.request_id, await _mark(request), make)
        self._tell_load(context)
        return pb.CreateSessionResponse(session=to_message(pb.Session, made[0]))

    @_answered
    async def BranchSession(self, request: pb.BranchSessionRequest, context: Context) -> pb.BranchSessionResponse:
        count = validate_branch(request)
        self._permit(request.session_id)
        branch = partial(self._sessions.branch, request.session_id, count, request.owners)
        made, _ = await self._once.do(request.request_id, await _mark(request), branch)
        return pb.BranchSessionResponse(sessions=[to_message(pb.Session, each) for each in made])

    @_answered
    async def SnapshotSession(self, request: pb.SnapshotSessionRequest, context: Context) -> pb.SnapshotSessionResponse:
        session_id = validate_session_id(request)
        self._permit(session_id)
        snapshot = await self._snapshots.take(self._sessions.table.find(session_id))
        return to_message(pb.SnapshotSessionResponse, snapshot)

    @_answered
    async def DeleteSession(self, request: pb.DeleteSessionRequest, context: Context) -> pb.DeleteSessionResponse:
        session_id = validate_session_id(request)
        try:
            self._permit(session_id)
        except SessionNotFound:
            return pb.DeleteSessionResponse(deleted=False)
        return pb.DeleteSessionResponse(deleted=await self._sessions.delete(session_id))

    @_answered
    async def ListSessions(self, request: pb.ListSessionsRequest, context: Context) -> pb.ListSessionsResponse:
        size, after = validate_list(own(request))
        page = self._sessions.table.page(owner=request.owner, tenant=request.tenant, after=after, size=size)
        sessions = [to_message(pb.Session, each) for each in page[0]]
        return pb.ListSessionsResponse(sessions=sessions, next_page_token=str(page[1] or ""))

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        return self._status()

    def _tell_load(self, context: Context) -> None:
        """Behind the answer, for clients that have several executors to choose from."""
        context.set_trailing_metadata(((LOAD_KEY, str(self._runs.load())),))

    async def _check(self, request: pb.ExecuteCodeRequest) -> tuple[RunRequest, bytes]:
        own(request)
        valid, mark = await check_apart(partial(self._read, request))
        if valid.session_id:
            self._permit(valid.session_id)
        return valid, mark

    def _read(self, request: pb.ExecuteCodeRequest) -> tuple[RunRequest, bytes]:
        valid = validate(
            request,
            installed=self._installed,
            policy=self._policy,
            profiles=self._profiles,
            session_language=self._sessions.table.language(request.session_id),
        )
        return valid, fingerprint(request) if valid.request_id else b""

    async def _execute(self, request: RunRequest, mark: bytes, follow: Follower | None = None) -> ExecutionResult:
        # A workspace is held from the first moment, so that it does not go while its run waits. A repeated request is
        # answered from the first run, whatever became of its workspace since.
        # A cell's is held by its session.
        known = request.session_id or self._runs.knows(request.request_id)
        if request.image and not known:
            async with self._images.hold(request.image, request.tenant):
                return await self._runs.execute(request, mark, follow)
        with self._workspaces.hold("" if known else request.workspace_id, request.tenant, request.limits):
            return await self._runs.execute(request, mark, follow)

    async def _check_verification(self, request: pb.VerifyCodeRequest) -> VerifyRequest:
        own(request)
        return await check_apart(partial(validate_verify, request, installed=self._installed, policy=self._policy))

    async def _verify(
        self, request: pb.VerifyCodeRequest, valid: VerifyRequest, follow: CaseFollower | None = None
    ) -> VerifyResult:
        program = valid.program
        name = "" if self._verifier.knows(program.request_id) else program.workspace_id
        with self._workspaces.hold(name, program.tenant, program.limits):
            mark = await _mark(request) if program.request_id else b""
            return await self._verifier.verify(valid, mark, follow)

    def _permit(self, session_id: str) -> None:
        """Raises SessionNotFound for a session of another tenant than the caller's token is for."""
        if tenant := current_identity().tenant:
            self._sessions.table.permit(session_id, tenant)


@contextmanager
def _named(field: str) -> Iterator[None]:
    """For a request that is a field of another message: FieldErrors name its fields so."""
    try:
        yield
    except FieldErrors as errors:
        raise FieldErrors([FieldError(f"{field}.{error.field}", error.problem) for error in errors.errors]) from None


def fingerprint(request: Message) -> bytes:
    """Digest by which two requests with one id are the same; ids of all kinds may share a table. It leaves out the
    lease, which says who pays for a run, not what is run."""
    same = request
    if isinstance(request, pb.ExecuteCodeRequest) and request.HasField("lease"):
        same = pb.ExecuteCodeRequest()
        same.CopyFrom(request)
        same.ClearField("lease")
    kind = request.DESCRIPTOR.name.encode()
    return hashlib.sha256(kind + b"\0" + same.SerializeToString(deterministic=True)).digest()


def _mark(request: Message) -> Awaitable[bytes]:
    """Its fingerprint; that of megabytes takes long."""
    return check_apart(lambda: fingerprint(request))
