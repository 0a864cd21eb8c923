"""The client's side of StreamExecution and StreamVerification: repeated once when the connection breaks, without gaps.

It is safe to repeat because every program carries a request_id: a server that ran it, or still runs it, answers from
that run; one that died took the program with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio

from executor_service.client.executors import Member, told_when_closed
from executor_service.errors import ExecutorUnavailable, error_of_call
from executor_service.grading.convert import case_from_proto, verify_from_proto
from executor_service.grading.model import CaseResult, VerifyResult
from executor_service.model import ExecutionResult
from executor_service.sandbox.report import Stream
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import from_message
from fairbox.telemetry.tracing import carried

R = TypeVar("R", pb.StreamExecutionResponse, pb.StreamVerificationResponse)


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Bytes of one stream, in the order in which the program wrote them. May begin or end inside a character."""

    stream: Stream
    data: bytes


async def stream_execution(
    member: Member, request: pb.ExecuteCodeRequest, *, deadline: float, target: str
) -> AsyncGenerator[OutputChunk | ExecutionResult, None]:
    """Chunks, then the result. `deadline` is the loop's time."""
    begin = partial(member.stub.StreamExecution, pb.StreamExecutionRequest(execution=request), metadata=carried())
    passed_on = dict.fromkeys(Stream, 0)
    to_skip: dict[Stream, int] = {}
    async with aclosing(_responses(member, begin, deadline=deadline, target=target)) as responses:
        async for response in responses:
            if response is None:
                to_skip = dict(passed_on)
                continue
            if response.HasField("result"):
                yield from_message(ExecutionResult, response.result)
                return
            kind = response.WhichOneof("event")
            if kind is None:
                continue  # an event that this version does not know
            stream, written = Stream(kind), getattr(response, kind)
            # The server begins again at the first byte; what was passed on before is not passed on twice.
            data = written[to_skip[stream] :]
            to_skip[stream] -= len(written) - len(data)
            if data:
                passed_on[stream] += len(data)
                yield OutputChunk(stream, data)


async def stream_verification(
    member: Member,
    request: pb.VerifyCodeRequest,
    on_case: Callable[[CaseResult], object],
    *,
    deadline: float,
    target: str,
) -> VerifyResult:
    """Calls `on_case` with each case's result, then returns all. `deadline` is the loop's time."""
    sent = pb.StreamVerificationRequest(verification=request)
    begin = partial(member.stub.StreamVerification, sent, metadata=carried())
    passed_on: Counter[str] = Counter()
    to_skip: Counter[str] = Counter()
    async with aclosing(_responses(member, begin, deadline=deadline, target=target)) as responses:
        async for response in responses:
            if response is None:
                to_skip = passed_on.copy()
                continue
            if response.HasField("result"):
                return verify_from_proto(response.result)
            if not response.HasField("case"):
                continue  # an event that this version does not know
            case = case_from_proto(response.case)
            # The server begins again with the first one: what was passed on before is not passed on twice.
            if to_skip[case.case_id]:
                to_skip[case.case_id] -= 1
            else:
                passed_on[case.case_id] += 1
                on_case(case)
    raise AssertionError("a stream without a result raises")


async def _responses(
    member: Member, begin: Callable[..., grpc.aio.UnaryStreamCall[Any, R]], *, deadline: float, target: str
) -> AsyncGenerator[R | None, None]:
    """Responses of the call that `begin(timeout=...)` begins, and of a second one if the connection breaks; None before
    those of each. Raises ExecutorUnavailable where they end, so a result has to be the last that is asked for."""
    for attempt in (1, 2):
        yield None
        call = begin(timeout=deadline - asyncio.get_running_loop().time())
        try:
            with told_when_closed(call, target):
                async for response in call:
                    member.failed = False
                    yield response
            raise ExecutorUnavailable(f"executor on {target}: the stream ended without a result")
        except grpc.aio.AioRpcError as error:
            member.refused(error)
            if attempt == 2 or error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise error_of_call(error, target) from error
        finally:
            call.cancel()
        await member.settled(deadline)
