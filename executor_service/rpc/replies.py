"""Makes large replies in threads that do not hold the interpreter.

Not avoided: gRPC for Python copies a reply on the loop before it sends it, 0.3 to 0.7 ms for each MiB, so a result of
the default limits holds it for up to 12 ms, and the largest, of 96 MiB, for up to 65 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from executor_service.grading.convert import verify_to_proto
from executor_service.grading.model import CaseResult, VerifyResult
from executor_service.model import ExecutionResult
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import put_into, to_message
from executor_service.wire.results import field_pieces, result_pieces

M = TypeVar("M", pb.ExecuteCodeResponse, pb.StreamExecutionResponse)
_SMALL = 256 << 10
"""Bytes up to which a message is made and written at once, in less than a millisecond."""


async def reply_with(kind: type[M], result: ExecutionResult) -> M | bytes:
    """A reply with the field `result`."""
    if result.size <= _SMALL:
        reply = kind()
        put_into(reply.result, result)
        return reply
    return await asyncio.to_thread(lambda: b"".join(field_pieces(kind.DESCRIPTOR, "result", result_pieces(result))))


async def verify_reply(result: VerifyResult) -> pb.VerifyCodeResponse | bytes:
    """The reply to a verification."""
    size = sum(case.execution.size + len(case.actual or b"") for case in result.cases if case.execution)
    if size <= _SMALL and len(result.cases) < _MANY:
        return verify_to_proto(result)

    def made() -> bytes:
        facts = to_message(pb.VerifyCodeResponse, result, cases=[], all_passed=result.all_passed)
        cases = (field_pieces(facts.DESCRIPTOR, "cases", _case(case)) for case in result.cases)
        return b"".join((facts.SerializeToString(), *(piece for case in cases for piece in case)))

    return await asyncio.to_thread(made)


async def case_reply(case: CaseResult) -> pb.StreamVerificationResponse | bytes:
    """One case's result, in a stream."""
    if (case.execution.size if case.execution else 0) + len(case.actual or b"") <= _SMALL:
        reply = pb.StreamVerificationResponse()
        put_into(reply.case, replace(case, actual=None))
        reply.case.actual = (case.actual or b"").decode()
        return reply
    return await asyncio.to_thread(lambda: b"".join(field_pieces(_STREAMED, "case", _case(case))))


async def last_reply(result: VerifyResult) -> pb.StreamVerificationResponse | bytes:
    """The result of a verification, at the end of a stream."""
    reply = await verify_reply(result)
    if isinstance(reply, bytes):
        return await asyncio.to_thread(lambda: b"".join(field_pieces(_STREAMED, "result", [reply])))
    return pb.StreamVerificationResponse(result=reply)


_STREAMED = pb.StreamVerificationResponse.DESCRIPTOR
_MANY = 20
"""Cases whose messages take a millisecond."""


def _case(case: CaseResult) -> Iterator[bytes]:
    actual = (case.actual or b"").decode()
    facts = to_message(pb.CaseResult, replace(case, execution=None), actual=actual)
    yield facts.SerializeToString()
    if case.execution is not None:
        yield from field_pieces(facts.DESCRIPTOR, "execution", result_pieces(case.execution))
