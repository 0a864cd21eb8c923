"""StreamExecution: the output of a run while it is read, then its result.

Invariants: the chunks of a stream, put together, are the `data` of that stream in the result, whether the run was new,
joined or ended; a reader that is slow holds up neither the program nor other readers, and costs no memory, because all
read from the one copy of the output that its run keeps, which ends at the output limit. Leaving kills the run unless
another call waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from executor_service.convert import result_to_proto
from executor_service.core.output import OutputLog, OutputReader
from executor_service.model import ExecutionResult, RunRequest
from executor_service.sandbox.report import Stream
from executor_service.server.problems import ReaderStalled
from executor_service.server.runs import Follower
from executor_service.v1 import executor_pb2 as pb

__all__ = ["STALLED_S", "Send", "send_in_time", "stream_execution"]

CHUNK_BYTES = 64 << 10
"""Largest chunk: a few make full use of a connection, and a person sees output without delay."""
STALLED_S = 900.0
"""A caller that takes nothing for so long, longer than a run of the usual maximum, counts as gone."""
_STREAMS = {Stream.STDOUT: pb.OUTPUT_STREAM_STDOUT, Stream.STDERR: pb.OUTPUT_STREAM_STDERR}

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
    return pb.StreamExecutionResponse(chunk=pb.OutputChunk(stream=_STREAMS[stream], data=data))


async def send_in_time(send: Callable[[Response], Awaitable[None]], response: Response) -> None:
    """Sends one response. Raises ReaderStalled."""
    try:
        async with asyncio.timeout(STALLED_S):
            await send(response)
    except TimeoutError:
        raise ReaderStalled(f"the caller took nothing for {STALLED_S:g} s") from None
