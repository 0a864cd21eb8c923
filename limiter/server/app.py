"""Puts the limiter together: its term, services, ports, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import grpc.aio
from prometheus_client.metrics_core import Metric

from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import FairboxError
from fairbox.extras import require
from fairbox.net.metrics import MetricsServer
from fairbox.net.serving import GrpcServer, HealthServer
from fairbox.security import Role, ServerSecurity, security_metrics
from fairbox.version import installed_version
from limiter.config import LimiterConfig
from limiter.core import BucketLimits, LimiterStatistics
from limiter.core.effects import Configured
from limiter.core.events import Configure
from limiter.leadership import Alone, Elector, Leadership, LeadershipLost
from limiter.leadership.file import FileLeadership
from limiter.leadership.leash import Leash
from limiter.leadership.term import wall_epoch
from limiter.server.access import ADMIN_ACCESS, SERVICE_ACCESS
from limiter.server.admin import ADMIN_SERVICE_NAME, LimiterAdminService
from limiter.server.core_runner import CoreRunner
from limiter.server.leader_term import LeaderTerm
from limiter.server.metrics import limiter_metrics
from limiter.server.reload import Reload
from limiter.server.service import LONGEST_MESSAGE, SERVICE_NAME, LimiterService
from limiter.v1 import limiter_pb2_grpc

_LOG = logging.getLogger("limiter")
_DRAIN_S = 1.0
"""Seconds for calls in flight at shutdown: the server has told each to go away, so only the answer is on its way."""


class LimiterServer:
    """`async with LimiterServer(config) as server`: a limiter that listens. FairboxError when a port can't be had.

    With `leader=none` it leads when the block is entered; otherwise `wait_leading()` says when.
    """

    def __init__(self, config: LimiterConfig) -> None:
        config.validate()
        self._config = config
        self._stack = contextlib.AsyncExitStack()
        self._clock = MonotonicClock()
        self._security = ServerSecurity(config, executor_token_file=config.executor_token_file)
        self._guard = self._security.port(SERVICE_ACCESS, needs=Role.CLIENT, setting="listen")
        self._admin_guard = self._security.port(ADMIN_ACCESS, needs=Role.ADMIN, setting="admin_listen")
        self._term = LeaderTerm(
            open_leadership(config, self._clock),
            self._clock,
            buckets=config.limits(),
            timing=config.timing(),
            on_runner=lambda runner: self._leading.set(),
        )
        self._leading = asyncio.Event()
        self._term_task: asyncio.Task[NoReturn] | None = None
        self.address = config.listen
        self.admin_address = config.admin_listen
        self.health_address = config.health_listen
        self.metrics_address = config.metrics_listen

    async def __aenter__(self) -> LimiterServer:
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            service = LimiterService(self._term)
            admin = LimiterAdminService(
                self._term, version=installed_version(), insecure=config.insecure, security=self._security.facts
            )

            def add_service(server: grpc.aio.Server) -> None:
                limiter_pb2_grpc.add_LimiterServiceServicer_to_server(service, server)

            def add_admin(server: grpc.aio.Server) -> None:
                limiter_pb2_grpc.add_LimiterAdminServiceServicer_to_server(admin, server)

            beside_guarded = self._security.guarded
            self._health = await stack.enter_async_context(
                HealthServer(config.health_listen, insecure=config.insecure, beside_guarded=beside_guarded)
            )
            self._admin = await stack.enter_async_context(
                GrpcServer(
                    config.admin_listen,
                    add=add_admin,
                    services=[ADMIN_SERVICE_NAME],
                    insecure=config.insecure,
                    setting="admin_listen",
                    guard=self._admin_guard,
                )
            )
            if config.metrics_listen:
                metrics = MetricsServer(
                    config.metrics_listen,
                    self._figures,
                    prefix="fairbox_limiter",
                    insecure=config.insecure or beside_guarded,
                )
                self.metrics_address = (await stack.enter_async_context(metrics)).address
            self._server = await stack.enter_async_context(
                GrpcServer(
                    config.listen,
                    add=add_service,
                    services=[SERVICE_NAME],
                    insecure=config.insecure,
                    guard=self._guard,
                    options=[("grpc.max_receive_message_length", LONGEST_MESSAGE)],
                )
            )
            self.address, self.admin_address = self._server.address, self._admin.address
            self.health_address = self._health.address
            self._term_task = asyncio.create_task(self._term.run(), name="term")
            stack.push_async_callback(self._end_term)
            if config.leader == "none":
                await self.wait_leading()
            self._stack = stack.pop_all()
        return self

    async def wait_leading(self) -> None:
        """Returns when it may grant, or has to wait for nothing but the end of the recovery. LeadershipLost when it
        never will."""
        assert self._term_task is not None
        leading = asyncio.create_task(self._leading.wait())
        try:
            await asyncio.wait([leading, self._term_task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leading.cancel()
        if self._leading.is_set():
            await self._health.set_ready(True)
        else:
            await self._term_task

    async def run(self) -> NoReturn:
        """Until it is cancelled. LeadershipLost when another limiter leads, or may: then this one has to end."""
        assert self._term_task is not None
        await self.wait_leading()
        await asyncio.shield(self._term_task)
        raise AssertionError("a term ends with LeadershipLost")

    @property
    def runner(self) -> CoreRunner:
        """The runner of this term, which decides. RuntimeError before this limiter leads."""
        if self._term.runner is None:
            raise RuntimeError("this limiter has not led yet")
        return self._term.runner

    def statistics(self) -> LimiterStatistics:
        """The state of every bucket now. RuntimeError before it leads."""
        return self.runner.core.statistics(self._clock.now())

    def configure(self, limits: BucketLimits) -> bool:
        """Creates or changes a bucket, whatever its version. False when this limiter does not lead now."""
        return self._term.runner is not None and any(
            isinstance(effect, Configured) for effect in self._term.runner.apply(Configure(limits, None))
        )

    async def stop(self) -> None:
        """Tells everybody to go away, lets calls in flight end, and closes the ports. Idempotent."""
        await self._health.set_ready(False)
        await self._end_term()
        await self._server.stop(_DRAIN_S)
        await self._stack.aclose()

    async def _end_term(self) -> None:
        """Grants nothing more, and lets another limiter lead. Idempotent."""
        if self._term_task is not None:
            self._term_task.cancel()
            await asyncio.wait([self._term_task])

    def _figures(self) -> Iterator[Metric]:
        yield from limiter_metrics(self._term)
        yield from security_metrics("fairbox_limiter", self._security.facts())

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self.stop())


async def serve(config: LimiterConfig, stop: asyncio.Event, *, reload: Reload | None = None) -> None:
    """Serves until `stop` is set; `reload` brings changes of the configuration. FairboxError in one sentence when it
    can't start, or may not lead any more."""
    async with LimiterServer(config) as server:
        _LOG.info("listening on %s, for operators on %s", server.address, server.admin_address)
        running, stopped = asyncio.create_task(server.run()), asyncio.create_task(stop.wait())
        tasks: list[asyncio.Task[Any]] = [running, stopped]
        if reload is not None:
            tasks.append(asyncio.create_task(reload.run(server.configure)))
        try:
            await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
        except LeadershipLost as lost:
            raise FairboxError(f"this limiter does not lead any more: {lost}") from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


_LEASE_NAME = "limiter"
"""Name of the Lease: the Role in k8s/ allows this one. Another limiter has another namespace."""


def open_leadership(config: LimiterConfig, clock: Clock) -> Leadership:
    """The leadership that `leader` names. ConfigError if this machine does not have what that needs."""
    if config.leader == "file":
        name = f"process {os.getpid()} on {socket.gethostname()}, {config.listen}"
        return FileLeadership(config.state_file, name=name, fresh=config.fresh)
    if config.leader == "k8s":
        return _kubernetes(config, clock)
    return Alone(name=config.listen, fresh=config.fresh, leash=Leash.handed_down(), key=_lasting_key(config))


def _lasting_key(config: LimiterConfig) -> bytes:
    """A key that is the same after a restart, though nothing is kept: made from what clients don't know. Without
    executors' tokens and TLS there is no such thing, and everybody may be an executor."""
    paths = [path for path in (config.executor_token_file, config.tls_key) if path]
    return hashlib.sha256(b"".join(Path(path).read_bytes() for path in paths)).digest()


def _kubernetes(config: LimiterConfig, clock: Clock) -> Leadership:
    require("leader=k8s", "k8s", "kubernetes_asyncio")
    from limiter.leadership import kubernetes  # half a second to import

    namespace = kubernetes.pod_namespace()
    configuration = kubernetes.in_cluster()
    lease = kubernetes.LeaseRecords(namespace, _LEASE_NAME, lambda: configuration)
    return Elector(
        lease,
        clock,
        identity=kubernetes.pod_identity(),
        duration=config.lease_duration_s,
        fresh=config.fresh,
        epoch_from=wall_epoch,
    )
