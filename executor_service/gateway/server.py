"""The HTTP server: routes, statuses, sizes and tokens. A thin shell; what an answer says is made elsewhere.

Invariants: `/v1/ping` waits for nothing; a body is refused by its size before it is read; a client that goes away takes
its run with it; no answer holds a traceback; nothing of a request is logged, because its path can hold the token.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from executor_service.gateway.errors import Refused, Unavailable, encode
from fairbox.net.http_server import HttpServer
from fairbox.net.serving import check_address
from fairbox.security.roles import set_identity
from fairbox.security.tokens import Keyring
from fairbox.telemetry import tracing

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Handlers = dict[tuple[str, str], Callable[[web.Request], Awaitable[object]]]
"""(method, path) -> what answers: a coroutine that returns the body, or a whole response."""

_OPEN = ("/v1/ping", "/")
"""Paths that need no token."""
_BODIES_AT_ONCE = 16
"""Bodies of the largest size that are held in memory at once; many more of the usual size fit."""
_MAX_BODY_BYTES = 32 << 20
"""Largest body of one request."""
_LAST_CALLS_S = 2.0
"""Handlers that still run when the server is stopped get so long."""
_LOG = logging.getLogger("executor_service.gateway")


class Gateway:
    """`async with Gateway(...)`: listens. `address` says where, also for port 0."""

    def __init__(
        self,
        listen: str,
        handlers: Handlers,
        *,
        keyring: Keyring | None,
        max_body_bytes: int = _MAX_BODY_BYTES,
        insecure: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`keyring`: its clients give one of these tokens; None: they give none."""
        check_address(listen, insecure=insecure or keyring is not None, setting="gateway_listen")
        self._keyring = keyring
        self._tls = tls
        self._max_body_bytes = max_body_bytes
        self._room = max_body_bytes * _BODIES_AT_ONCE
        application = web.Application(client_max_size=max_body_bytes, middlewares=[_errors, self._guard, self._bound])
        for (method, path), handler in handlers.items():
            for prefix in ("", "/k/{token}"):
                for route in {path, f"{path.rstrip('/')}/"}:
                    application.router.add_route(method, prefix + route, _answered(handler, f"{method} {path}"))
        self._server = HttpServer(
            application,
            listen,
            setting="gateway_listen",
            logger=_LOG.name,
            last_calls_s=_LAST_CALLS_S,
            auto_decompress=False,  # aiohttp would do it on the event loop
        )

    async def __aenter__(self) -> Gateway:
        await self._server.start(self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    @property
    def address(self) -> str:
        return self._server.address

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Lets nobody pass without a token, where there are some; without, its path form does not exist."""
        given = request.match_info.get("token")
        if self._keyring is None:
            if given is not None:
                raise web.HTTPNotFound
            return await handler(request)
        if given is None:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            given = given.strip() if scheme.lower() == "bearer" else ""
            if not given and request.path in _OPEN:
                return await handler(request)
        identity = self._keyring.table().find(given)
        if identity is None:
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": "Bearer"})
        set_identity(identity, lambda: True)  # nothing here outlives a rotation for long
        return await handler(request)

    @web.middleware
    async def _bound(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Holds room for the body until it is answered; one of unknown size, or compressed, counts as the largest."""
        size = 0
        if request.body_exists:
            told = None if "Content-Encoding" in request.headers else request.content_length
            size = self._max_body_bytes if told is None else told
        if size > self._max_body_bytes:
            raise web.HTTPRequestEntityTooLarge(self._max_body_bytes, size)
        if size > self._room:
            raise Unavailable("overloaded: requests in flight hold all the memory that their bodies may use", 1.0)
        self._room -= size
        try:
            return await handler(request)
        finally:
            self._room += size


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=encode(body), status=status, headers=headers, content_type="application/json")


def _answered(handler: Callable[[web.Request], Awaitable[object]], name: str) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        if not tracing.enabled() or request.method == "GET":
            body = await handler(request)
        else:
            with tracing.call_span(name, request.headers.get("traceparent", "")):
                body = await handler(request)
        if isinstance(body, web.StreamResponse):
            return body
        return json_response(body)

    return answer


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as error:
        headers = {} if error.retry_after_s is None else {"Retry-After": str(max(1, round(error.retry_after_s)))}
        return json_response({"detail": error.detail}, error.status, headers)
    except web.HTTPException as error:
        kept = {name: error.headers[name] for name in ("Allow", "WWW-Authenticate") if name in error.headers}
        return json_response({"detail": _sentence(error)}, error.status, kept)
    except asyncio.CancelledError:
        raise
    except Exception:  # the boundary: its reason is in the log, and not for clients
        _LOG.exception("a request failed for a reason that nobody foresaw")
        return json_response({"detail": "Internal Server Error"}, 500)


def _sentence(error: web.HTTPException) -> str:
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return "the body is larger than this server takes"
    return error.reason
