"""`fairbox status`: what limiter and executor are doing at this moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import grpc.aio
from rich import box
from rich.console import Console, Group
from rich.table import Table

from executor_service.v1 import executor_pb2, executor_pb2_grpc
from fairbox.channels import open_channel
from fairbox.config import load, setting
from fairbox.errors import EXIT_FAILURE
from limiter.v1 import limiter_pb2, limiter_pb2_grpc

__all__ = ["StatusConfig", "main"]

if TYPE_CHECKING:
    from executor_service.v1.executor_pb2_grpc import ExecutorServiceAsyncStub as Executor
    from limiter.v1.limiter_pb2_grpc import LimiterAdminServiceAsyncStub as LimiterAdmin


@dataclass(frozen=True)
class StatusConfig:
    """Settings of `fairbox status`."""

    limiter: str = setting("127.0.0.1:50053", help="Address of the limiter's admin service.")
    executor: str = setting("127.0.0.1:50051", help="Address of the executor.")
    timeout_s: float = setting(5.0, help="The longest wait for each answer, seconds.")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when both answered, 1 otherwise."""
    config = load(StatusConfig, prefix="FAIRBOX_STATUS", prog="fairbox status", description=__doc__ or "", argv=argv)
    return asyncio.run(_show(config, Console()))


async def _show(config: StatusConfig, console: Console) -> int:
    code = 0
    async with open_channel(config.limiter) as channel:
        try:
            stub = cast("LimiterAdmin", limiter_pb2_grpc.LimiterAdminServiceStub(channel))
            status = await stub.GetStatus(limiter_pb2.GetStatusRequest(), timeout=config.timeout_s)
            console.print(_limiter(config.limiter, status))
        except grpc.aio.AioRpcError as error:
            console.print(f"limiter on {config.limiter}: {error.code().name}: {error.details()}", style="red")
            code = EXIT_FAILURE
    async with open_channel(config.executor) as channel:
        try:
            executor_stub = cast("Executor", executor_pb2_grpc.ExecutorServiceStub(channel))
            executor = await executor_stub.GetStatus(executor_pb2.GetStatusRequest(), timeout=config.timeout_s)
            console.print(_executor(config.executor, executor))
        except grpc.aio.AioRpcError as error:
            console.print(f"executor on {config.executor}: {error.code().name}: {error.details()}", style="red")
            code = EXIT_FAILURE
    return code


def _limiter(target: str, status: limiter_pb2.GetStatusResponse) -> Group:
    state = "leading" if status.leader else "standing by"
    title = f"limiter {status.version} on {target}: epoch {status.epoch}, {state}, up {status.uptime_s:.0f} s"
    title += ", recovering" if status.recovering else ""
    table = Table(box=box.SIMPLE_HEAD, padding=0)  # narrow enough for 80 columns
    for column in ("bucket", "limit", "held", "bound", "queued", "oldest", "granted", "expired", "rejected"):
        table.add_column(column, justify="left" if column == "bucket" else "right")
    for bucket in status.buckets:
        table.add_row(
            bucket.config.name,
            str(bucket.effective_limit),
            str(bucket.held),
            str(bucket.bound),
            str(bucket.queued),
            f"{bucket.oldest_wait_s:.1f} s",
            str(bucket.granted_total),
            str(bucket.expired_total),
            str(bucket.rejected_total),
        )
    return Group(title, table)


def _executor(target: str, status: executor_pb2.GetStatusResponse) -> Group:
    title = f"executor {status.version} on {target}: {status.served_by}, up {status.uptime_s:.0f} s"
    title += ", draining" if status.draining else ""
    table = Table(show_header=False, box=box.SIMPLE, padding=(0, 1, 0, 0))
    isolation = executor_pb2.IsolationLevel.Name(status.isolation_level).removeprefix("ISOLATION_LEVEL_").lower()
    table.add_row("isolation", isolation)
    table.add_row("running", f"{status.running} of {status.max_running}")
    table.add_row("queued", f"{status.queued} of {status.max_queued}, oldest {status.oldest_wait_s:.1f} s")
    limiter = status.limiter
    table.add_row("limiter", f"{limiter.target}, {'valid' if limiter.valid else 'not valid'}, {limiter.bound} bound")
    table.add_row("languages", ", ".join(language.name for language in status.languages if language.installed))
    outcomes = (f"{_outcome(item.outcome)} {item.count}" for item in status.outcomes if item.count)
    table.add_row("runs ended", ", ".join(outcomes) or "none")
    return Group(title, table)


def _outcome(outcome: executor_pb2.Outcome.ValueType) -> str:
    return executor_pb2.Outcome.Name(outcome).removeprefix("OUTCOME_")
