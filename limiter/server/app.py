"""Puts the limiter together: core, hub, services, ports, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from types import TracebackType

import grpc.aio

from fairbox.clock import MonotonicClock
from fairbox.serving import GrpcServer, HealthServer
from fairbox.version import installed_version
from limiter.config import LimiterConfig
from limiter.core import LimiterCore, LimiterStatistics
from limiter.server.admin import ADMIN_SERVICE_NAME, LimiterAdminService
from limiter.server.hub import Hub
from limiter.server.service import SERVICE_NAME, LimiterService
from limiter.v1 import limiter_pb2_grpc

__all__ = ["LimiterServer", "new_epoch", "serve"]

_LOG = logging.getLogger("limiter")


def new_epoch() -> int:
    """Wall-clock milliseconds: grows over restarts without storage, unless the clock is set back in between."""
    return time.time_ns() // 1_000_000


class LimiterServer:
    """`async with LimiterServer(config) as server`: a limiter that listens. FairboxError when a port can't be had."""

    def __init__(self, config: LimiterConfig) -> None:
        config.validate()
        self._config = config
        self._stack = contextlib.AsyncExitStack()
        self._clock = MonotonicClock()
        self.address = config.listen
        self.admin_address = config.admin_listen
        self.health_address = config.health_listen

    async def __aenter__(self) -> LimiterServer:
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            core = LimiterCore(new_epoch(), config.limits(), now=self._clock.now(), timing=config.timing())
            self._hub = Hub(core, self._clock)
            service = LimiterService(self._hub)
            admin = LimiterAdminService(self._hub, version=installed_version(), insecure=config.insecure)

            def add_service(server: grpc.aio.Server) -> None:
                limiter_pb2_grpc.add_LimiterServiceServicer_to_server(service, server)

            def add_admin(server: grpc.aio.Server) -> None:
                limiter_pb2_grpc.add_LimiterAdminServiceServicer_to_server(admin, server)

            self._health = await stack.enter_async_context(HealthServer(config.health_listen, insecure=config.insecure))
            self._admin = await stack.enter_async_context(
                GrpcServer(
                    config.admin_listen,
                    add=add_admin,
                    services=[ADMIN_SERVICE_NAME],
                    insecure=config.insecure,
                    setting="admin_listen",
                )
            )
            self._server = await stack.enter_async_context(
                GrpcServer(config.listen, add=add_service, services=[SERVICE_NAME], insecure=config.insecure)
            )
            self.address, self.admin_address = self._server.address, self._admin.address
            self.health_address = self._health.address
            await self._health.set_ready(True)
            self._stack = stack.pop_all()
        return self

    def statistics(self) -> LimiterStatistics:
        """The state of every bucket now."""
        return self._hub.core.statistics(self._clock.now())

    async def stop(self) -> None:
        """Tells everybody to go away, lets calls in flight end, and closes the ports. Idempotent."""
        await self._health.set_ready(False)
        self._hub.close()
        await self._server.stop(self._config.drain_grace_s)
        await self._stack.aclose()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.stop())


async def serve(config: LimiterConfig, stop: asyncio.Event) -> None:
    """Serves until `stop` is set. FairboxError in one sentence when it can't start."""
    async with LimiterServer(config) as server:
        _LOG.info("listening on %s, for operators on %s", server.address, server.admin_address)
        await stop.wait()
