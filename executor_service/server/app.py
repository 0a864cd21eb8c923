"""Puts the executor together: looks at the machine, listens, serves, drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

from executor_service.config import ExecutorConfig
from executor_service.core.admission import Admission
from executor_service.core.dedup import DedupTable
from executor_service.model import IsolationLevel
from executor_service.sandbox.groups import find_groups
from executor_service.sandbox.host import inspect_host
from executor_service.sandbox.seccomp import compile_filter
from executor_service.server.leases import LeaseGate, NoLimiter
from executor_service.server.probe import probe
from executor_service.server.programs import Programs
from executor_service.server.remote_limiter import RemoteLimiter
from executor_service.server.runs import Runs
from executor_service.server.service import SERVICE_NAME, ExecutorService
from executor_service.server.status import status
from executor_service.v1 import executor_pb2_grpc
from fairbox.clock import MonotonicClock
from fairbox.serving import GrpcServer, HealthServer
from fairbox.version import installed_version
from limiter import ExecutorSession

__all__ = ["serve"]

_LOG = logging.getLogger("executor_service")

_LAST_CALLS_S = 2.0
"""After the last run has ended, calls get so long to take their answers."""


async def serve(config: ExecutorConfig, stop: asyncio.Event) -> None:
    """Serves until `stop` is set, then drains. FairboxError in one sentence when it can't start."""
    async with contextlib.AsyncExitStack() as stack:
        health = await stack.enter_async_context(HealthServer(config.health_listen, insecure=config.insecure))
        groups = find_groups(config.cgroups)
        stack.callback(groups.remove)
        host = inspect_host(python=config.python, groups=groups, seccomp=compile_filter(), slots=config.max_concurrent)
        capabilities = await probe(host, IsolationLevel(config.min_isolation))
        name = config.name or f"{socket.gethostname()}:{config.listen.rpartition(':')[2]}"
        gate = await stack.enter_async_context(open_gate(config, name))
        clock = MonotonicClock()
        runs = await stack.enter_async_context(
            Runs(
                Programs(host, clock, name=name),
                gate,
                clock,
                name=name,
                admission=Admission(max_running=config.max_concurrent, max_queued=config.max_queued),
                table=DedupTable(
                    max_ids=config.dedup_max_ids,
                    max_bytes=config.dedup_max_bytes,
                    max_age_s=config.dedup_window_s,
                ),
                queue_timeout_s=config.queue_timeout_s,
            )
        )
        started, version = clock.now(), installed_version()
        service = ExecutorService(
            runs,
            config.policy(),
            capabilities.installed,
            lambda: status(config, name, version, runs, gate, capabilities, clock.now() - started),
        )
        server = await stack.enter_async_context(
            GrpcServer(
                config.listen,
                add=lambda server: executor_pb2_grpc.add_ExecutorServiceServicer_to_server(service, server),
                services=[SERVICE_NAME],
                insecure=config.insecure,
            )
        )
        await health.set_ready(True)
        _LOG.info("listening on %s, limiter %s", server.address, config.limiter)
        await stop.wait()
        await health.set_ready(False)
        await runs.drain(config.drain_grace_s)
        await server.stop(_LAST_CALLS_S)


@contextlib.asynccontextmanager
async def open_gate(config: ExecutorConfig, name: str) -> AsyncIterator[LeaseGate]:
    """The gate that the configuration asks for."""
    if config.limiter == "none":
        yield NoLimiter()
        return
    async with ExecutorSession(config.limiter, executor_id=name, local_cap=config.max_concurrent) as session:
        yield RemoteLimiter(
            session,
            bucket=config.limiter_bucket,
            bind_timeout_s=config.limiter_timeout_s,
            queue_timeout_s=config.queue_timeout_s,
        )
