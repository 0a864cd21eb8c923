"""ExecuteBatch: many programs, each queued, limited and leased by itself; results as they end.

Invariants: every program is checked before the first is queued; each index is answered exactly once; what the caller
has not taken yet is never more than `max_parallel` results, because the next program starts when a result was sent;
leaving kills every run that no other call waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from executor_service.convert import result_to_proto
from executor_service.core.batch import Batch
from executor_service.model import Cause, ExecutionResult, Outcome, RunRequest
from executor_service.server.problems import ReaderStalled, problem_of
from executor_service.server.stream import send_in_time
from executor_service.v1 import executor_pb2 as pb
from fairbox.errors import FieldError, FieldErrors

__all__ = ["MAX_ITEMS", "BatchItem", "check_batch", "check_prefixed", "execute_batch"]

MAX_ITEMS = 1024

Send = Callable[[pb.ExecuteBatchResponse], Awaitable[None]]
Check = Callable[[pb.ExecuteCodeRequest], "BatchItem"]
Execute = Callable[[RunRequest, bytes], Awaitable[ExecutionResult]]


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One program of a batch, checked."""

    request: RunRequest
    fingerprint: bytes


def check_batch(request: pb.ExecuteBatchRequest, check: Check) -> Sequence[BatchItem]:
    """The programs, each checked. FieldErrors that name what is wrong with any of them, e.g. `executions[3].code`."""
    count = len(request.executions)
    if not 1 <= count <= MAX_ITEMS:
        problem = f"has {count} entries, must have from 1 to {MAX_ITEMS}"
        raise FieldErrors([FieldError("executions", problem)])
    found: list[FieldError] = []
    items: list[BatchItem] = []
    ids: dict[str, int] = {}
    for index, execution in enumerate(request.executions):
        path = f"executions[{index}]"
        try:
            items.append(check_prefixed(path, execution, check))
        except FieldErrors as errors:
            found += errors.errors
        first = ids.setdefault(execution.request_id, index)
        if execution.request_id and first != index:
            problem = f"is {execution.request_id!r}, which executions[{first}] has, must differ"
            found.append(FieldError(f"{path}.request_id", problem))
    if found:
        raise FieldErrors(found)
    return items


def check_prefixed(path: str, execution: pb.ExecuteCodeRequest, check: Check) -> BatchItem:
    """A program that is a field of another message. FieldErrors name its fields with `path` before them."""
    try:
        return check(execution)
    except FieldErrors as errors:
        raise FieldErrors([FieldError(f"{path}.{error.field}", error.problem) for error in errors.errors]) from None


async def execute_batch(
    items: Sequence[BatchItem], execute: Execute, send: Send, *, max_parallel: int, stop_on_failure: bool
) -> None:
    """Runs the programs and sends one response for each. Raises ReaderStalled."""
    batch = Batch(len(items), max_parallel=max_parallel, stop_on_failure=stop_on_failure)
    sending = asyncio.Lock()
    stalled: ReaderStalled | None = None

    async def run(index: int) -> None:
        nonlocal stalled
        response = pb.ExecuteBatchResponse(index=index)
        try:
            result = await execute(items[index].request, items[index].fingerprint)
        except Exception as error:  # the boundary: the item gets its status
            problem = problem_of(error)
            response.error.CopyFrom(
                pb.ItemError(
                    code=problem.code.value[0],
                    message=problem.message,
                    reason=problem.reason,
                    metadata=problem.facts,
                    retry_after_s=problem.retry_after_s,
                )
            )
            batch.failed(index, Cause.POLICY if problem.fields else Cause.INFRA)
        else:
            response.result.CopyFrom(result_to_proto(result))
            if not result.ok:
                batch.failed(index, result.cause)
        async with sending:
            await send_in_time(send, response)
        for started in batch.handed_over(index):
            group.create_task(run(started), name=f"item {started}")

    try:
        async with asyncio.TaskGroup() as group:
            for started in batch.start():
                group.create_task(run(started), name=f"item {started}")
    except* ReaderStalled as errors:
        stalled = ReaderStalled(str(errors.exceptions[0]))
    if stalled is not None:
        raise stalled
    for index in batch.never_started():
        assert batch.stopped is not None
        message = f"Not started: program {batch.stopped.index} of the batch failed, and stop_on_failure was set."
        result = ExecutionResult(Outcome.CANCELLED, batch.stopped.cause, message=message)
        response = pb.ExecuteBatchResponse(index=index, result=result_to_proto(result))
        response.result.request_id = items[index].request.request_id
        await send_in_time(send, response)
