"""Public test kit: an HTTP server that answers for Leases as an API server does, and fails as one does.

`async with LeaseServer() as server:` gives `server.url`. It knows get, create and update of Leases in the namespaces
given, resource versions, and the checks of a Lease's fields; tokens and TLS where they are asked for; no watch.
"""

from __future__ import annotations

import asyncio
import copy
import re
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from aiohttp import web

_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_PATH = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
_MAX_INT32 = 2**31 - 1
_VERBS = {"POST": "create", "GET": "get", "PUT": "update"}


class LeaseServer:
    """Set the public fields at any time."""

    def __init__(self, namespaces: Sequence[str] = ("fairbox",), *, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: serves HTTPS with it."""
        self.leases: dict[tuple[str, str], dict[str, Any]] = {}
        """By namespace and name, as they are stored."""
        self.delay = 0.0
        """Seconds before each request is looked at."""
        self.status = 0
        """Answer with this status and do nothing; 0: work."""
        self.silent = False
        """Do the work, then close the connection without an answer."""
        self.tokens: set[str] = set()
        """Bearer tokens that are taken; empty: none is asked for."""
        self.forbidden: set[str] = set()
        """Verbs that nobody has a right to: `create`, `get`, `update`."""
        self.requests: list[str] = []
        """Method and path of each."""
        self.url = ""
        self._namespaces = set(namespaces)
        self._tls = tls
        self._version = 100
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> LeaseServer:
        application = web.Application()
        application.router.add_post(_PATH, self._create)
        application.router.add_get(_PATH + "/{name}", self._get)
        application.router.add_put(_PATH + "/{name}", self._update)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if failed := await self._failure(request):
            return failed
        found = self.leases.get(_key(request))
        if found is None:
            return _problem(404, "NotFound", f'leases.coordination.k8s.io "{_key(request)[1]}" not found')
        return await self._answer(request, 200, found)

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if failed := await self._failure(request):
            return failed
        namespace, name = request.match_info["namespace"], body["metadata"]["name"]
        if namespace not in self._namespaces:
            return _problem(404, "NotFound", f'namespaces "{namespace}" not found')
        if (namespace, name) in self.leases:
            return _problem(409, "AlreadyExists", f'leases.coordination.k8s.io "{name}" already exists')
        if body["metadata"].get("resourceVersion"):
            return _problem(422, "Invalid", "resourceVersion should not be set on objects to be created")
        return await self._store(request, (namespace, name), body, 201)

    async def _update(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if failed := await self._failure(request):
            return failed
        key = _key(request)
        found = self.leases.get(key)
        if found is None:
            return _problem(404, "NotFound", f'leases.coordination.k8s.io "{key[1]}" not found')
        if body["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
            return _problem(409, "Conflict", "the object has been modified; please apply your changes to the latest")
        return await self._store(request, key, body, 200)

    async def _store(
        self, request: web.Request, key: tuple[str, str], body: dict[str, Any], status: int
    ) -> web.StreamResponse:
        if problem := _invalid(body):
            return _problem(422, "Invalid", problem)
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self.leases[key] = body
        return await self._answer(request, status, body)

    async def _failure(self, request: web.Request) -> web.StreamResponse | None:
        self.requests.append(f"{request.method} {request.path}")
        await asyncio.sleep(self.delay)
        if self.tokens and request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            return _problem(401, "Unauthorized", "Unauthorized")
        if (verb := _VERBS[request.method]) in self.forbidden:
            return _problem(403, "Forbidden", f'leases is forbidden: cannot {verb} resource "leases"')
        return _problem(self.status, "InternalError", "as the test wants it") if self.status else None

    async def _answer(self, request: web.Request, status: int, body: dict[str, Any]) -> web.StreamResponse:
        if self.silent:
            assert request.transport is not None
            request.transport.close()
        return web.json_response(copy.deepcopy(body), status=status)


def _key(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


def _problem(status: int, reason: str, message: str) -> web.Response:
    return web.json_response(
        {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message},
        status=status,
    )


def _invalid(body: dict[str, Any]) -> str:
    """Objection of an API server to a Lease; empty: none."""
    spec = body["spec"]
    if not isinstance(spec.get("leaseDurationSeconds"), int) or spec["leaseDurationSeconds"] < 1:
        return "spec.leaseDurationSeconds: Invalid value: must be greater than 0"
    if not 0 <= spec.get("leaseTransitions", 0) <= _MAX_INT32:
        return "spec.leaseTransitions: Invalid value"
    for key in ("acquireTime", "renewTime"):
        if key in spec and not _MICRO_TIME.fullmatch(spec[key]):
            return f"spec.{key}: {spec[key]!r} is not an RFC 3339 time with microseconds"
    annotations = body["metadata"].get("annotations", {})
    if not all(isinstance(value, str) for value in annotations.values()):
        return "metadata.annotations: must be strings"
    if sum(len(key) + len(value) for key, value in annotations.items()) > 256 * 1024:
        return "metadata.annotations: Too long: may not be more than 262144 bytes"
    return ""
