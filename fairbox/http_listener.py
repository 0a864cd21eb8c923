"""Listens for a server that is made with aiohttp: a bounded number of connections, none of which is silent for long.

aiohttp by itself takes as many as there are descriptors, and lets each be silent for an hour. Invariants: connections
beyond `_MOST` are closed at once, so that descriptors stay for the work; one that brings no whole request within
`_FIRST_S`, or no other one within `KEPT_S`, is closed.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["KEPT_S", "HttpListener"]

KEPT_S = 75.0
"""For `web.AppRunner(..., keepalive_timeout=...)`: longer than proxies keep connections by default."""
_MOST = 4096
_FIRST_S = 30.0
_HANDSHAKE_S = 10.0
"""As for gRPC."""


class HttpListener:
    """`start()` after the runner's `setup()`, `close()` before its `cleanup()`."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = _MOST if soft == resource.RLIM_INFINITY else min(_MOST, max(16, soft // 4))
        self._silent: dict[asyncio.Protocol, asyncio.TimerHandle] = {}
        """Connections that have brought no request, until their time has run out."""
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """The port; 0 takes a free one. OSError for an address that can't be had."""
        server = self._runner.server
        assert server is not None
        make = server.request_factory

        def heard(message: Any, payload: Any, protocol: Any, *others: Any) -> Any:
            self._end_silence(protocol)
            return make(message, payload, protocol, *others)

        server.request_factory = heard
        self._server = await asyncio.get_running_loop().create_server(
            self._connection,
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=_HANDSHAKE_S if tls is not None else None,
            backlog=1024,
        )
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Takes no more connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        for timer in self._silent.values():
            timer.cancel()
        self._silent.clear()

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
