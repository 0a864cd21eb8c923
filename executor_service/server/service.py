"""ExecutorService over gRPC: checks a request, hands it on, names every error. A thin shell; it decides nothing.

`stream_execution`: the chunks of a stream, put together, are the `data` of that stream in the result, whether the run
was new, joined or ended; a reader that is slow holds up neither the program nor other readers, and costs no memory,
because all read from the one copy of the output that its run keeps, which ends at the output limit. Leaving kills the
run unless another call waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from executor_service.balance import LOAD_KEY
from executor_service.convert import result_to_proto
from executor_service.core.output import OutputLog, OutputReader
from executor_service.grading.convert import verify_to_proto
from executor_service.grading.validation import validate_verify
from executor_service.model import ExecutionResult, RunRequest
from executor_service.sandbox.report import Stream
from executor_service.server.access import own
from executor_service.server.problems import ReaderStalled, abort
from executor_service.server.runs import Follower, Runs
from executor_service.server.session_service import SessionService
from executor_service.server.verify import Verifier
from executor_service.server.workspace_calls import WorkspaceCalls
from executor_service.v1 import executor_pb2 as pb
from executor_service.v1 import executor_pb2_grpc
from executor_service.validation import LimitPolicy, validate
from fairbox.errors import FieldError, FieldErrors

__all__ = ["SERVICE_NAME", "STALLED_S", "ExecutorService", "Send", "send_in_time", "stream_execution"]

CHUNK_BYTES = 64 << 10
"""Largest chunk: a few make full use of a connection, and a person sees output without delay."""
STALLED_S = 900.0
"""A caller that takes nothing for so long, longer than a run of the usual maximum, counts as gone."""

Response = TypeVar("Response")
Execute = Callable[[RunRequest, bytes, Follower], Coroutine[Any, Any, ExecutionResult]]
"""Runs a request, or joins the run that has its id: see `Runs.execute`."""
Send = Callable[[pb.StreamExecutionResponse], Awaitable[None]]
"""Returns when the connection has room for more."""


async def stream_execution(execute: Execute, request: RunRequest, fingerprint: bytes, send: Send) -> None:
    """Sends chunks, then the result. Raises what `execute` raises, and ReaderStalled."""
    changed = asyncio.Event()
    reader = OutputReader(OutputLog())

    def follow(output: OutputLog) -> None:
        nonlocal reader
        if not reader.reads(output):
            reader = OutputReader(output)
        changed.set()

    run = asyncio.create_task(execute(request, fingerprint, follow), name="streamed run")
    run.add_done_callback(lambda _: changed.set())
    try:
        while not run.done():
            await changed.wait()
            changed.clear()
            while piece := reader.take(CHUNK_BYTES):
                await send_in_time(send, _chunk(*piece))
        result = run.result()
        await _send_rest(result, reader, send)
    finally:
        run.cancel()
        await asyncio.wait([run])
    await send_in_time(send, pb.StreamExecutionResponse(result=result_to_proto(result)))


async def _send_rest(result: ExecutionResult, reader: OutputReader, send: Send) -> None:
    """What the reader has not taken: the end of the output, or all of it where the run had ended before."""
    for stream, output in ((Stream.STDOUT, result.stdout), (Stream.STDERR, result.stderr)):
        for start in range(reader.taken(stream), len(output.data), CHUNK_BYTES):
            await send_in_time(send, _chunk(stream, output.data[start : start + CHUNK_BYTES]))


def _chunk(stream: Stream, data: bytes) -> pb.StreamExecutionResponse:
    if stream is Stream.STDOUT:
        return pb.StreamExecutionResponse(stdout=data)
    return pb.StreamExecutionResponse(stderr=data)


async def send_in_time(send: Callable[[Response], Awaitable[None]], response: Response) -> None:
    """Sends one response. Raises ReaderStalled."""
    try:
        async with asyncio.timeout(STALLED_S):
            await send(response)
    except TimeoutError:
        raise ReaderStalled(f"the caller took nothing for {STALLED_S:g} s") from None


if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

T = TypeVar("T")
SERVICE_NAME = "executor_service.v1.ExecutorService"


@dataclass(frozen=True, slots=True)
class Checked:
    """A request that was found valid, and what makes another one the same."""

    request: RunRequest
    fingerprint: bytes


class ExecutorService(executor_pb2_grpc.ExecutorServiceServicer):
    def __init__(
        self,
        runs: Runs,
        verifier: Verifier,
        sessions: SessionService,
        policy: LimitPolicy,
        installed: frozenset[str],
        profiles: frozenset[str],
        workspaces: WorkspaceCalls,
        status: Callable[[], pb.GetStatusResponse],
    ) -> None:
        self._runs = runs
        self._verifier = verifier
        self._sessions = sessions
        self._policy = policy
        self._installed = installed
        self._profiles = profiles
        self._workspaces = workspaces
        self._status = status

    async def ExecuteCode(  # noqa: N802
        self, request: pb.ExecuteCodeRequest, context: Context
    ) -> pb.ExecuteCodeResponse:
        try:
            item = self._check(request)
            result = await self._execute(item.request, item.fingerprint)
        except Exception as error:  # the boundary: each gets its status
            await abort(context, error)
        self._tell_load(context)
        return pb.ExecuteCodeResponse(result=result_to_proto(result))

    async def VerifyCode(  # noqa: N802
        self, request: pb.VerifyCodeRequest, context: Context
    ) -> pb.VerifyCodeResponse:
        try:
            # In a thread: a request can hold megabytes of values to be parsed.
            valid = await asyncio.to_thread(
                validate_verify, own(request), installed=self._installed, policy=self._policy
            )
            program = valid.program
            name = "" if self._verifier.knows(program.request_id) else program.workspace_id
            with self._workspaces.hold(name, program.limits):
                result = await self._verifier.verify(valid, fingerprint(request) if program.request_id else b"")
        except Exception as error:  # the boundary: each gets its status
            await abort(context, error)
        self._tell_load(context)
        return await asyncio.to_thread(verify_to_proto, result)

    async def StreamExecution(  # type: ignore[override]  # noqa: N802
        self, request: pb.StreamExecutionRequest, context: Context
    ) -> None:
        try:
            item = self._check_streamed(request.execution)
            await stream_execution(self._execute, item.request, item.fingerprint, context.write)
        except Exception as error:  # the boundary: each gets its status
            await abort(context, error)

    async def PrepareWorkspace(  # noqa: N802
        self, request: pb.PrepareWorkspaceRequest, context: Context
    ) -> pb.PrepareWorkspaceResponse:
        try:
            return await self._workspaces.prepare(own(request))
        except Exception as error:  # the boundary: each gets its status
            await abort(context, error)

    async def CreateSession(  # noqa: N802
        self, request: pb.CreateSessionRequest, context: Context
    ) -> pb.CreateSessionResponse:
        response = await _answered(context, lambda: self._sessions.create(own(request)))
        self._tell_load(context)
        return response

    async def BranchSession(  # noqa: N802
        self, request: pb.BranchSessionRequest, context: Context
    ) -> pb.BranchSessionResponse:
        return await _answered(context, lambda: self._sessions.branch(request))

    async def DeleteSession(  # noqa: N802
        self, request: pb.DeleteSessionRequest, context: Context
    ) -> pb.DeleteSessionResponse:
        return await _answered(context, lambda: self._sessions.delete(request))

    async def ListSessions(  # noqa: N802
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        return await _answered(context, lambda: self._sessions.list(own(request)))

    async def GetStatus(  # noqa: N802
        self, request: pb.GetStatusRequest, context: Context
    ) -> pb.GetStatusResponse:
        return self._status()

    def _tell_load(self, context: Context) -> None:
        """Behind the answer, for clients that have several executors to choose from."""
        context.set_trailing_metadata(((LOAD_KEY, str(self._runs.load())),))

    def _check_streamed(self, execution: pb.ExecuteCodeRequest) -> Checked:
        """A program that is a field of another message: FieldErrors name its fields so."""
        try:
            return self._check(execution)
        except FieldErrors as errors:
            named = [FieldError(f"execution.{error.field}", error.problem) for error in errors.errors]
            raise FieldErrors(named) from None

    def _check(self, request: pb.ExecuteCodeRequest) -> Checked:
        valid = validate(own(request), installed=self._installed, policy=self._policy, profiles=self._profiles)
        if valid.session_id:
            self._sessions.permit(valid.session_id)
        return Checked(valid, fingerprint(request) if valid.request_id else b"")

    async def _execute(self, request: RunRequest, mark: bytes, follow: Follower | None = None) -> ExecutionResult:
        # A workspace is held from the first moment, so that it does not go while its run waits. A repeated request is
        # answered from the first run, whatever became of its workspace since.
        # A cell's is held by its session.
        known = request.session_id or self._runs.knows(request.request_id)
        with self._workspaces.hold("" if known else request.workspace_id, request.limits):
            return await self._runs.execute(request, mark, follow)


def fingerprint(request: pb.ExecuteCodeRequest | pb.VerifyCodeRequest) -> bytes:
    """What makes two requests the same. Not the lease: it says who pays for a run, not what is run."""
    same = request
    if isinstance(request, pb.ExecuteCodeRequest) and request.HasField("lease"):
        same = pb.ExecuteCodeRequest()
        same.CopyFrom(request)
        same.ClearField("lease")
    return hashlib.sha256(same.SerializeToString(deterministic=True)).digest()


async def _answered(context: Context, answer: Callable[[], Awaitable[T]]) -> T:
    try:
        return await answer()
    except Exception as error:  # the boundary: each gets its status
        await abort(context, error)
