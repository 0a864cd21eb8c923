"""Client of the execution tier: `async with ExecutorClient(target) as executor: await executor.execute(code)`.

Invariants: every call has a deadline; a program's failure is a result and never an exception; an exception is an
ExecutorError and says that there is no result. One client serves any number of concurrent calls of one event loop.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from executor_service.convert import limits_to_proto, result_from_proto
from executor_service.errors import (
    ExecutorError,
    ExecutorUnavailable,
    InvalidRequest,
    LeaseRefused,
    Overloaded,
    RunLost,
)
from executor_service.grading.convert import verify_from_proto, verify_request
from executor_service.grading.model import Case, Comparison, VerifyResult
from executor_service.model import ExecutionResult, InputFile, Limits
from executor_service.v1 import executor_pb2 as pb
from executor_service.v1 import executor_pb2_grpc
from fairbox.channels import open_channel
from fairbox.grpc_errors import field_errors, retry_after
from limiter import LeaseLike

if TYPE_CHECKING:
    from executor_service.v1.executor_pb2_grpc import ExecutorServiceAsyncStub

__all__ = ["ExecutorClient"]

QUEUE_ALLOWANCE_S = 600.0
"""What a call may spend in queues and set-up, on top of the program's own time."""
_ASSUMED_WALL_S = 600.0
"""The program's time where the request leaves it to the server: the server's default is not above its usual maximum."""
_OVERHEAD_S = 30.0
"""Set-up, killing and the way back."""


class ExecutorClient:
    """`target` is `host:port`. Enter it inside the event loop that uses it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._channel: grpc.aio.Channel | None = None
        self._stub: ExecutorServiceAsyncStub | None = None

    async def __aenter__(self) -> ExecutorClient:
        self._channel = open_channel(self.target)
        # The generated stub has no asynchronous constructor; the object is the same.
        self._stub = cast("ExecutorServiceAsyncStub", executor_pb2_grpc.ExecutorServiceStub(self._channel))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close()

    async def execute(
        self,
        code: str,
        *,
        language: str = "python",
        stdin: bytes = b"",
        args: Sequence[str] = (),
        files: Sequence[InputFile] = (),
        return_paths: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        lease: LeaseLike | None = None,
        request_id: str = "",
        tenant: str = "",
        profile: str = "",
        timeout: float | None = None,
    ) -> ExecutionResult:
        """Runs a program and returns what became of it. Cancelling kills it.

        `timeout` (seconds) bounds the whole call; by default the program's wall time plus QUEUE_ALLOWANCE_S. Raises
        InvalidRequest, Overloaded, LeaseRefused, RunLost or ExecutorUnavailable.
        """
        limits = limits or Limits()
        try:
            request = pb.ExecuteCodeRequest(
                code=code,
                language=language,
                stdin=stdin,
                args=args,
                files=[pb.InputFile(path=file.path, content=file.content, mode=file.mode) for file in files],
                return_paths=return_paths,
                env=env or {},
                limits=limits_to_proto(limits),
                lease=_lease_to_proto(lease),
                request_id=request_id or uuid.uuid4().hex,
                tenant=tenant,
                profile=profile,
            )
        except ValueError as error:  # text that is not valid Unicode, a number that does not fit
            raise InvalidRequest(f"the request can't be sent: {error}", ()) from None
        if timeout is None:
            timeout = (limits.wall_time_s or _ASSUMED_WALL_S) + QUEUE_ALLOWANCE_S + _OVERHEAD_S
        response = await self._call("ExecuteCode", request, timeout)
        return result_from_proto(response.result)

    async def verify(
        self,
        code: str,
        cases: Sequence[Case],
        *,
        language: str = "python",
        entry_point: str = "",
        files: Sequence[InputFile] = (),
        test_files: Sequence[InputFile] = (),
        setup_code: str = "",
        limits: Limits | None = None,
        comparison: Comparison | None = None,
        stop_on_failure: bool = False,
        trusted_candidate: bool = False,
        workspace_id: str = "",
        request_id: str = "",
        tenant: str = "",
        timeout: float | None = None,
    ) -> VerifyResult:
        """Grades a candidate against cases of one kind, which says the style. Cancelling kills what runs.

        `limits` are those of each case; `comparison` None: WHITESPACE for texts, EXACT for values. `timeout` (seconds)
        bounds the whole call; by default the wall time of all cases plus QUEUE_ALLOWANCE_S. Raises as `execute`.
        """
        limits = limits or Limits()
        try:
            request = verify_request(
                code,
                cases,
                language=language,
                entry_point=entry_point,
                files=files,
                test_files=test_files,
                setup_code=setup_code,
                limits=limits,
                comparison=comparison,
                stop_on_failure=stop_on_failure,
                trusted_candidate=trusted_candidate,
                workspace_id=workspace_id,
                request_id=request_id or uuid.uuid4().hex,
                tenant=tenant,
            )
        except ValueError as error:  # a value that is not plain data, text that is not valid Unicode
            raise InvalidRequest(f"the request can't be sent: {error}", ()) from None
        if timeout is None:
            timeout = (limits.wall_time_s or _ASSUMED_WALL_S) * len(cases) + QUEUE_ALLOWANCE_S + _OVERHEAD_S
        return verify_from_proto(await self._call("VerifyCode", request, timeout))

    async def _call(self, method: str, request: Message, timeout: float) -> Any:
        if self._stub is None:
            raise RuntimeError("ExecutorClient is used outside its `async with` block")
        deadline = asyncio.get_running_loop().time() + timeout
        call = getattr(self._stub, method)
        try:
            try:
                return await call(request, timeout=timeout)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                # Once more, because a connection may have been closed under the call. Safe: the request carries a
                # request_id, so a server that ran it, or still runs it, answers from that run; one that died took the
                # program with it.
                return await call(request, timeout=deadline - asyncio.get_running_loop().time())
        except grpc.aio.AioRpcError as error:
            raise _typed(error, self.target) from error


def _lease_to_proto(lease: LeaseLike | None) -> pb.Lease | None:
    if lease is None:
        return None
    return pb.Lease(bucket=lease.bucket, epoch=lease.epoch, seq=lease.seq, client_session_id=lease.client_session_id)


def _typed(error: grpc.aio.AioRpcError, target: str) -> ExecutorError:
    message = f"executor on {target}: {error.details() or error.code().name}"
    match error.code():
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidRequest(message, tuple(field_errors(error)))
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(message, retry_after(error) or 1.0)
        case grpc.StatusCode.FAILED_PRECONDITION:
            return LeaseRefused(message)
        case grpc.StatusCode.ABORTED:
            return RunLost(message)
        case _:
            return ExecutorUnavailable(message)
