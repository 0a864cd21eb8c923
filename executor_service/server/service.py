"""ExecutorService over gRPC: checks a request, hands it on, names every error. A thin shell; it decides nothing."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio

from executor_service.convert import result_to_proto
from executor_service.core.admission import QueueFull
from executor_service.core.dedup import IdReused
from executor_service.grading.convert import verify_to_proto
from executor_service.grading.validation import validate_verify
from executor_service.remote.errors import RemoteBusy, RemoteDown
from executor_service.server.leases import LeaseGone, LeaseQueueFull, LeaseRefusal, LimiterDown
from executor_service.server.runs import Abandoned, Draining, QueueTimeout, ResultGone, Runs
from executor_service.server.verify import Verifier
from executor_service.v1 import executor_pb2 as pb
from executor_service.v1 import executor_pb2_grpc
from executor_service.validation import LimitPolicy, validate
from fairbox.errors import FieldError, FieldErrors
from fairbox.grpc_errors import abort_exhausted, abort_fields

__all__ = ["SERVICE_NAME", "ExecutorService"]

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

SERVICE_NAME = "executor_service.v1.ExecutorService"
_QUEUE_TIMEOUT_RETRY_S = 30.0
"""Advice to one who has waited in vain for minutes."""
_log = logging.getLogger(__name__)


def _unimplemented(name: str) -> Any:
    async def answer(self: ExecutorService, request: object, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{name} is not offered by this version of the executor")

    return answer


class ExecutorService(executor_pb2_grpc.ExecutorServiceServicer):
    def __init__(
        self,
        runs: Runs,
        verifier: Verifier | None,
        policy: LimitPolicy,
        installed: frozenset[str],
        profiles: frozenset[str],
        status: Callable[[], pb.GetStatusResponse],
    ) -> None:
        self._runs = runs
        self._verifier = verifier
        self._policy = policy
        self._installed = installed
        self._profiles = profiles
        self._status = status

    async def ExecuteCode(  # noqa: N802
        self, request: pb.ExecuteCodeRequest, context: Context
    ) -> pb.ExecuteCodeResponse:
        try:
            valid = validate(request, installed=self._installed, policy=self._policy, profiles=self._profiles)
        except FieldErrors as errors:
            await abort_fields(context, errors)
        try:
            result = await self._runs.execute(valid, fingerprint(request) if valid.request_id else b"")
        except Exception as error:  # the boundary: each gets its status
            await _abort(context, error)
        return pb.ExecuteCodeResponse(result=result_to_proto(result))

    async def VerifyCode(  # noqa: N802
        self, request: pb.VerifyCodeRequest, context: Context
    ) -> pb.VerifyCodeResponse:
        if self._verifier is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "VerifyCode is not offered where programs run elsewhere")
        try:
            # In a thread: a request can hold megabytes of values to be parsed.
            valid = await asyncio.to_thread(validate_verify, request, installed=self._installed, policy=self._policy)
        except FieldErrors as errors:
            await abort_fields(context, errors)
        try:
            result = await self._verifier.verify(valid, fingerprint(request) if valid.program.request_id else b"")
        except Exception as error:  # the boundary: each gets its status
            await _abort(context, error)
        return await asyncio.to_thread(verify_to_proto, result)

    async def GetStatus(  # noqa: N802
        self, request: pb.GetStatusRequest, context: Context
    ) -> pb.GetStatusResponse:
        return self._status()

    StreamExecution = _unimplemented("StreamExecution")
    ExecuteBatch = _unimplemented("ExecuteBatch")
    CreateSession = _unimplemented("CreateSession")
    BranchSession = _unimplemented("BranchSession")
    DeleteSession = _unimplemented("DeleteSession")
    ListSessions = _unimplemented("ListSessions")
    PrepareWorkspace = _unimplemented("PrepareWorkspace")


def fingerprint(request: pb.ExecuteCodeRequest | pb.VerifyCodeRequest) -> bytes:
    """What makes two requests the same. Not the lease: it says who pays for a run, not what is run."""
    same = type(request)()
    same.CopyFrom(request)  # type: ignore[arg-type]
    if isinstance(same, pb.ExecuteCodeRequest):
        same.ClearField("lease")
    return hashlib.sha256(same.SerializeToString(deterministic=True)).digest()


async def _abort(context: Context, error: Exception) -> NoReturn:
    match error:
        case IdReused():
            problem = FieldError("request_id", "was used for another request, must be new or repeat the same request")
            await abort_fields(context, FieldErrors([problem]))
        case QueueFull():
            await abort_exhausted(context, str(error), retry_after_s=error.retry_after_s, subject="executor:queue")
        case LeaseQueueFull():
            await abort_exhausted(context, str(error), retry_after_s=error.retry_after_s, subject="limiter:queue")
        case QueueTimeout():
            message = "the request waited for as long as queue_timeout_s allows"
            retry_s = _QUEUE_TIMEOUT_RETRY_S
            await abort_exhausted(context, message, retry_after_s=retry_s, subject="executor:queue_timeout_s")
        case Draining():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this executor is ending and takes no more programs")
        case Abandoned():
            message = "the run was given up by its first caller before it started; ask again"
            await context.abort(grpc.StatusCode.UNAVAILABLE, message)
        case RemoteBusy():
            await abort_exhausted(context, str(error), retry_after_s=error.retry_after_s, subject="remote:sandbox")
        case FieldErrors():
            await abort_fields(context, error)
        case LimiterDown() | RemoteDown():
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        case LeaseRefusal():
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        case LeaseGone():
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        case ResultGone():
            message = "the program ran, and its result is no longer kept; a new attempt takes a new request_id"
            await context.abort(grpc.StatusCode.ABORTED, message)
        case _:
            _log.error("a run failed for a reason that nobody foresaw", exc_info=error)
            await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__} in the executor; see its log")
    raise AssertionError("abort() does not return")
