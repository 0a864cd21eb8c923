"""Answers that are streams: what a program prints while it runs, and results of cases as they are known.

The chunks of a stream, put together, are the `data` of that stream in the result, and the cases those of the result,
whether the work was new, joined or had ended. A reader that is slow holds up neither the work nor other readers, and
costs no memory, because all read from what the work itself keeps. Leaving ends the work unless another call waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from executor_service.grading.model import VerifyResult
from executor_service.model import ExecutionResult, RunRequest
from executor_service.rpc.problems import ReaderStalled
from executor_service.rpc.replies import case_reply, last_reply, reply_with
from executor_service.runs.output import OutputLog, OutputReader
from executor_service.runs.queue import Follower
from executor_service.sandbox.report import Stream
from executor_service.v1 import executor_pb2 as pb
from executor_service.verification.verify import CaseFollower, CaseLog

CHUNK_BYTES = 64 << 10
"""Largest chunk: a few make full use of a connection, and a person sees output without delay."""
STALLED_S = 900.0
"""A caller that takes nothing for so long, longer than a run of the usual maximum, counts as gone."""

T = TypeVar("T")
Execute = Callable[[RunRequest, bytes, Follower], Coroutine[Any, Any, ExecutionResult]]
"""Runs a request, or joins the run that has its id: see `ExecutionQueue.execute`."""
Verify = Callable[[CaseFollower], Coroutine[Any, Any, VerifyResult]]
Send = Callable[[Any], Awaitable[None]]
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

    async with _at_work(execute(request, fingerprint, follow), changed) as run:
        while not run.done():
            await changed.wait()
            changed.clear()
            while piece := reader.take(CHUNK_BYTES):
                await _send_in_time(send, _chunk(*piece))
        result = run.result()
        await _send_rest(result, reader, send)
    await _send_in_time(send, await reply_with(pb.StreamExecutionResponse, result))


async def stream_verification(verify: Verify, send: Send) -> None:
    """Sends cases, then the result. Raises what `verify` raises, and ReaderStalled."""
    changed, log, sent = asyncio.Event(), CaseLog(), 0

    def follow(cases: CaseLog) -> None:
        nonlocal log
        log = cases
        changed.set()

    async with _at_work(verify(follow), changed) as work:
        while not work.done():
            await changed.wait()
            changed.clear()
            while sent < len(log.results):
                sent += 1
                await _send_in_time(send, await case_reply(log.results[sent - 1]))
        result = work.result()
        for case in (log.results or result.cases)[sent:]:
            await _send_in_time(send, await case_reply(case))
    await _send_in_time(send, await last_reply(result))


@asynccontextmanager
async def _at_work(work: Coroutine[Any, Any, T], changed: asyncio.Event) -> AsyncIterator[asyncio.Task[T]]:
    """The work as a task, which sets `changed` when it ends; it has ended when the block is left."""
    task = asyncio.create_task(work, name="streamed work")
    task.add_done_callback(lambda _: changed.set())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _send_rest(result: ExecutionResult, reader: OutputReader, send: Send) -> None:
    """Sends what the reader has not taken: the end of the output, or all of it if the run had ended before."""
    for stream, output in ((Stream.STDOUT, result.stdout), (Stream.STDERR, result.stderr)):
        for start in range(reader.taken(stream), len(output.data), CHUNK_BYTES):
            await _send_in_time(send, _chunk(stream, output.data[start : start + CHUNK_BYTES]))


def _chunk(stream: Stream, data: bytes) -> pb.StreamExecutionResponse:
    if stream is Stream.STDOUT:
        return pb.StreamExecutionResponse(stdout=data)
    return pb.StreamExecutionResponse(stderr=data)


async def _send_in_time(send: Send, response: object) -> None:
    """Sends one response. Raises ReaderStalled."""
    try:
        async with asyncio.timeout(STALLED_S):
            await send(response)
    except TimeoutError:
        raise ReaderStalled(f"the caller took nothing for {STALLED_S:g} s") from None
