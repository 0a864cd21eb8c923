"""Makes large replies in threads that do not hold the interpreter.

A message copies what is put into it, and itself when it is written, and nothing else runs meanwhile: a result of 32 MiB
took 100 ms of the event loop. Here its bytes are joined once: fields of one message that are written one after the
other are one message. Not avoided: gRPC for Python copies a reply on the loop before it sends it, 0.3 to 0.7 ms for
each MiB, so a result of the default limits holds it for up to 12 ms, and the largest, of 96 MiB, for up to 65 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from google.protobuf.descriptor import Descriptor

from executor_service.grading.convert import verify_to_proto
from executor_service.grading.model import CaseResult, VerifyResult
from executor_service.model import Display, ExecutionResult, OutputFile
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import put_into, to_message
from fairbox.net.reading import varint

M = TypeVar("M", pb.ExecuteCodeResponse, pb.StreamExecutionResponse)
_SMALL = 256 << 10
"""Bytes up to which a message is made and written at once, in less than a millisecond."""
_FORM = pb.Display.DESCRIPTOR.nested_types_by_name["DataEntry"]
"""Entry of its map."""


async def reply_with(kind: type[M], result: ExecutionResult) -> M | bytes:
    """A reply with the field `result`."""
    if result.size <= _SMALL:
        reply = kind()
        put_into(reply.result, result)
        return reply
    return await asyncio.to_thread(lambda: b"".join(_field(kind.DESCRIPTOR, "result", _result(result))))


async def verify_reply(result: VerifyResult) -> pb.VerifyCodeResponse | bytes:
    """The reply to a verification."""
    size = sum(case.execution.size + len(case.actual or b"") for case in result.cases if case.execution)
    if size <= _SMALL and len(result.cases) < _MANY:
        return verify_to_proto(result)

    def made() -> bytes:
        facts = to_message(pb.VerifyCodeResponse, result, cases=[], all_passed=result.all_passed)
        cases = (_field(facts.DESCRIPTOR, "cases", _case(case)) for case in result.cases)
        return b"".join((facts.SerializeToString(), *(piece for case in cases for piece in case)))

    return await asyncio.to_thread(made)


async def case_reply(case: CaseResult) -> pb.StreamVerificationResponse | bytes:
    """One case's result, in a stream."""
    if (case.execution.size if case.execution else 0) + len(case.actual or b"") <= _SMALL:
        reply = pb.StreamVerificationResponse()
        put_into(reply.case, replace(case, actual=None))
        reply.case.actual = (case.actual or b"").decode()
        return reply
    return await asyncio.to_thread(lambda: b"".join(_field(_STREAMED, "case", _case(case))))


async def last_reply(result: VerifyResult) -> pb.StreamVerificationResponse | bytes:
    """The result of a verification, at the end of a stream."""
    reply = await verify_reply(result)
    if isinstance(reply, bytes):
        return await asyncio.to_thread(lambda: b"".join(_field(_STREAMED, "result", [reply])))
    return pb.StreamVerificationResponse(result=reply)


_STREAMED = pb.StreamVerificationResponse.DESCRIPTOR
_MANY = 20
"""Cases whose messages take a millisecond."""


def _case(case: CaseResult) -> Iterator[bytes]:
    actual = (case.actual or b"").decode()
    facts = to_message(pb.CaseResult, replace(case, execution=None), actual=actual)
    yield facts.SerializeToString()
    if case.execution is not None:
        yield from _field(facts.DESCRIPTOR, "execution", _result(case.execution))


def _result(result: ExecutionResult) -> Iterator[bytes]:
    stdout, stderr = replace(result.stdout, data=b""), replace(result.stderr, data=b"")
    facts = to_message(pb.ExecutionResult, replace(result, stdout=stdout, stderr=stderr, files=(), displays=()))
    yield facts.SerializeToString()
    for name, output in (("stdout", result.stdout), ("stderr", result.stderr)):
        yield from _field(facts.DESCRIPTOR, name, _field(pb.Output.DESCRIPTOR, "data", [output.data]))
    for file in result.files:
        yield from _field(facts.DESCRIPTOR, "files", _file(file))
    for display in result.displays:
        yield from _field(facts.DESCRIPTOR, "displays", _display(display))


def _file(file: OutputFile) -> Iterator[bytes]:
    yield to_message(pb.OutputFile, replace(file, content=b"")).SerializeToString()
    yield from _field(pb.OutputFile.DESCRIPTOR, "content", [file.content])


def _display(display: Display) -> Iterator[bytes]:
    yield to_message(pb.Display, replace(display, data={})).SerializeToString()
    for name, data in display.data.items():
        entry = (*_field(_FORM, "key", [name.encode()]), *_field(_FORM, "value", [data]))
        yield from _field(pb.Display.DESCRIPTOR, "data", entry)


def _field(kind: Descriptor, name: str, value: Iterable[bytes]) -> Iterator[bytes]:
    """A field whose value has a length, as it is written."""
    pieces = tuple(value)
    yield varint(kind.fields_by_name[name].number << 3 | 2) + varint(sum(map(len, pieces)))
    yield from pieces
