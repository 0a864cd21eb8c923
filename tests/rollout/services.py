"""Questions that tests of tools ask the real limiter and the real executor."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from executor_service.v1 import executor_pb2, executor_pb2_grpc
from fairbox.net.channels import open_channel
from limiter.v1 import limiter_pb2, limiter_pb2_grpc
from rollout.stack import LocalStack
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig

_ANSWERS_WITHIN_S = 60.0


def interpreter(stack: LocalStack, **settings: Any) -> CodeInterpreter:
    config = CodeInterpreterConfig(**{"default_timeout": 20.0} | settings)
    return CodeInterpreter(config, executor=stack.ports.executor, limiter=stack.ports.limiter)


async def limiter_status(stack: LocalStack) -> limiter_pb2.GetStatusResponse:
    async with open_channel(stack.ports.limiter_admin) as channel:
        stub = cast("Any", limiter_pb2_grpc.LimiterAdminServiceStub(channel))
        found = await stub.GetStatus(limiter_pb2.GetStatusRequest(), timeout=_ANSWERS_WITHIN_S)
    return cast("limiter_pb2.GetStatusResponse", found)


async def executor_status(stack: LocalStack) -> executor_pb2.GetStatusResponse:
    async with open_channel(stack.ports.executor) as channel:
        stub = cast("Any", executor_pb2_grpc.ExecutorServiceStub(channel))
        found = await stub.GetStatus(executor_pb2.GetStatusRequest(), timeout=_ANSWERS_WITHIN_S)
    return cast("executor_pb2.GetStatusResponse", found)


async def nothing_left(stack: LocalStack) -> None:
    """Returns when no session lives, nothing runs, and no lease is held or waited for."""
    async with asyncio.timeout(30):
        while True:
            executor, limiter = await executor_status(stack), await limiter_status(stack)
            bucket = limiter.buckets[0]
            if executor.running == executor.sessions == bucket.held == bucket.queued == 0:
                return
            await asyncio.sleep(0.05)
