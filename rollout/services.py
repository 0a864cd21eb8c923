"""Limiter and executor of a run: those that its settings name, or a pair of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

import grpc.aio
from rich.console import Console

from executor_service.v1 import executor_pb2, executor_pb2_grpc
from fairbox.errors import FairboxError
from fairbox.net.channels import open_channel
from fairbox.net.grpc_errors import why_unavailable
from fairbox.security import client_security
from rollout.config import RolloutConfig
from rollout.envs.base import Environment
from rollout.stack import STARTS_SERVICES, LocalStack, own_python, refuse_foreign_security
from rollout.tools.code.settings import ExecutorToolConfig
from rollout.tools.registry.registry import ToolSpec, common_rate_limit

if TYPE_CHECKING:
    from executor_service.v1.executor_pb2_grpc import ExecutorServiceAsyncStub

_PROBE_S = 5.0
"""Longest wait for services that should be there already."""


@contextlib.asynccontextmanager
async def open_services(
    config: RolloutConfig, environment: Environment, specs: tuple[ToolSpec, ...], console: Console
) -> AsyncIterator[tuple[str, str]]:
    """(limiter, executor): those of the configuration, or a pair that lives as long as the run."""
    if not config.up:
        if any(settings.needs_executor for settings in _executor_settings(specs)):
            await _probe(config.executor)
        yield config.limiter, config.executor
        return
    refuse_foreign_security()
    console.print("starting limiter and executor")
    limit = common_rate_limit(specs) or config.tool.rate_limit
    roots = environment.workspace_roots()
    hold = max((settings.longest_hold_s for settings in _executor_settings(specs)), default=0.0)
    both = [*config.words(), f"log_level={config.log_level}"]
    stack = LocalStack(
        limiter_args=[f"buckets.code.max_in_flight={limit}", f"buckets.code.max_hold_s={hold:g}", *both],
        executor_args=[
            f"python={own_python()[0]}",
            *([f"workspace_roots={json.dumps([str(root) for root in roots])}"] if roots else []),
            *both,
        ],
    )
    async with stack, stack.kept():
        yield stack.ports.limiter, stack.ports.executor


def _executor_settings(specs: tuple[ToolSpec, ...]) -> list[ExecutorToolConfig]:
    """Settings of the tools that run programs."""
    return [spec.config for spec in specs if isinstance(spec.config, ExecutorToolConfig)]


async def _probe(target: str) -> None:
    """Raises FairboxError when no executor answers, before the model is loaded. Of several, with commas, one is enough:
    the client finds those that are there."""
    problem = ""
    for address in target.split(","):
        async with open_channel(address.strip(), security=client_security()) as channel:
            stub = cast("ExecutorServiceAsyncStub", executor_pb2_grpc.ExecutorServiceStub(channel))
            try:
                await stub.GetStatus(executor_pb2.GetStatusRequest(), timeout=_PROBE_S)
                return
            except grpc.aio.AioRpcError as error:
                problem = why_unavailable(error.details() or error.code().name)
    raise FairboxError(f"no executor on {target}: {problem}; {STARTS_SERVICES}, and --up does for this run alone")
