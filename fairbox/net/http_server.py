"""An HTTP server made with aiohttp: a bounded number of connections, none of them silent for long, and a short log.

aiohttp by itself takes as many connections as there are descriptors, lets each be silent for an hour, and logs what is
no HTTP with its line or its header, which can hold a token. Invariants: connections beyond `_MOST` are closed at once,
so that descriptors stay for the work; one that brings no whole request within `_FIRST_S`, or no other one within
`_KEPT_S`, is closed; no byte of a request is in the log, and a flood of what is no HTTP is no flood of lines.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import time
from typing import Any

from aiohttp import web

from fairbox.errors import FairboxError

_KEPT_S = 75.0
"""Longer than proxies keep connections by default."""
_MOST = 4096
_FIRST_S = 30.0
_HANDSHAKE_S = 10.0
"""As for gRPC."""
_ERRORS = "aiohttp.http_exceptions"
"""Module of what aiohttp raises for bytes that it can't read."""
_TOLD_EVERY_S = 10.0
"""Between two lines about them."""


class HttpServer:
    """`start()` listens, `stop()` ends every request. `address` says where, also for port 0."""

    def __init__(
        self,
        application: web.Application,
        listen: str,
        *,
        setting: str,
        logger: str,
        last_calls_s: float,
        auto_decompress: bool = True,
    ) -> None:
        """`setting` names `listen` for people; `logger` is what lines are told under; requests in flight at the stop
        get `last_calls_s`. Without `auto_decompress` bodies are as they were sent. Handlers are cancelled when their
        client goes away, and what they began with them."""
        self.address = listen
        self._setting = setting
        self._log = logging.getLogger(f"{logger}.http")
        self._filter = _WithoutBytes()
        self._runner = web.AppRunner(
            application,
            handler_cancellation=True,
            access_log=None,
            logger=self._log,
            shutdown_timeout=last_calls_s,
            keepalive_timeout=_KEPT_S,
            auto_decompress=auto_decompress,
        )
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = _MOST if soft == resource.RLIM_INFINITY else min(_MOST, max(16, soft // 4))
        self._silent: dict[asyncio.Protocol, asyncio.TimerHandle] = {}
        """Connections that have brought no request, until their time has run out."""
        self._server: asyncio.Server | None = None

    async def start(self, tls: ssl.SSLContext | None) -> None:
        """FairboxError for an address that can't be had."""
        self._log.addFilter(self._filter)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        make = server.request_factory

        def heard(message: Any, payload: Any, protocol: Any, *others: Any) -> Any:
            self._end_silence(protocol)
            return make(message, payload, protocol, *others)

        server.request_factory = heard
        host, _, port = self.address.rpartition(":")
        handshake_s = _HANDSHAKE_S if tls is not None else None
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._connection,
                host.strip("[]"),
                int(port),
                ssl=tls,
                ssl_handshake_timeout=handshake_s,
                backlog=1024,
            )
        except OSError as error:
            await self.stop()
            problem = error.strerror or error
            raise FairboxError(f"{self._setting}: can't listen on {self.address}: {problem}") from None
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Idempotent."""
        if self._server is not None:
            self._server.close()
        for timer in self._silent.values():
            timer.cancel()
        self._silent.clear()
        await self._runner.cleanup()
        self._log.removeFilter(self._filter)

    def _connection(self) -> asyncio.Protocol:
        server = self._runner.server
        if server is None or len(server.connections) >= self._most:
            return _Refused()
        protocol = server()
        self._silent[protocol] = asyncio.get_running_loop().call_later(_FIRST_S, self._too_late, protocol)
        return protocol

    def _end_silence(self, protocol: Any) -> None:
        timer = self._silent.pop(protocol, None)
        if timer is not None:
            timer.cancel()

    def _too_late(self, protocol: Any) -> None:
        self._end_silence(protocol)
        protocol.force_close()


class _Refused(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class _WithoutBytes(logging.Filter):
    """Rewrites records about what is no HTTP, and lets one of many through."""

    def __init__(self) -> None:
        super().__init__()
        self._told_at = float("-inf")
        self._untold = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Says whether to log the record."""
        kind = record.exc_info[0] if record.exc_info else None
        if kind is None or kind.__module__ != _ERRORS:
            return True
        self._untold += 1
        now = time.monotonic()
        if now - self._told_at < _TOLD_EVERY_S:
            return False
        record.msg = "%d clients sent what is no HTTP, the last one: %s"
        record.args = (self._untold, kind.__name__)
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        self._told_at, self._untold = now, 0
        return True
