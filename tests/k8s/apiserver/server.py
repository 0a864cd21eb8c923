"""The API server over HTTPS, with tokens and a certificate of its own: what kubectl and pods speak to.

`async with ApiServer() as server:` runs it in this event loop; `server.kubeconfig(path)` writes what kubectl takes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import logging
import secrets
import ssl
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

import trustme
from aiohttp import web

from tests.k8s.apiserver.api import Api, Request, Response
from tests.k8s.apiserver.listing import Watch
from tests.k8s.apiserver.problem import Problem

__all__ = ["ApiServer"]

_LOG = logging.getLogger("tests.k8s.apiserver")
_MAX_BODY = 3 << 20
_MAX_WATCH_S = 3600.0
_TERMINATING_S = 0.5
"""From the deletion of a namespace to its end: long enough that a client sees it going away, as in a cluster."""
_LATEST = "1.36"
"""The version whose admission has been measured on a real cluster."""


class ApiServer:
    """One API server on loopback, with objects of its own that go with it."""

    def __init__(self, version: str = _LATEST, *, port: int = 0) -> None:
        """`version`: of Kubernetes. `port` 0: a free one."""
        self.version = version
        self.api = Api(
            version,
            now=lambda: datetime.datetime.now(datetime.UTC),
            word=lambda: str(uuid.UUID(bytes=secrets.token_bytes(16))),
        )
        self.admin_token = self.api.accounts.admin()
        self.requests: list[str] = []
        """Method and path of each, in order; never more than the last 100,000."""
        authority = trustme.CA()
        self.certificate = authority.cert_pem.bytes()
        """Of the authority that has signed the server's, as PEM."""
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1", "localhost", "kubernetes.default.svc").configure_cert(self._tls)
        self.mistakes: list[str] = []
        """Requests that this server itself failed at."""
        self._port = port
        self._runner: web.AppRunner | None = None
        self._changed = asyncio.Event()
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def __aenter__(self) -> ApiServer:
        application = web.Application(client_max_size=_MAX_BODY)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        if self._sweep is not None:
            self._sweep.cancel()
        await self._runner.cleanup()

    def kubeconfig(self, path: Path, *, token: str = "", namespace: str = "default", url: str = "") -> Path:
        """Writes what kubectl takes, for the holder of a token (none: the administrator), and returns the path."""
        authority = base64.b64encode(self.certificate).decode()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "rig",
            "clusters": [
                {"name": "rig", "cluster": {"server": url or self.url, "certificate-authority-data": authority}}
            ],
            "users": [{"name": "rig", "user": {"token": token or self.admin_token}}],
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "rig", "namespace": namespace}}],
        }
        path.write_text(json.dumps(document), encoding="utf-8")
        path.chmod(0o600)
        return path

    def pod_token(self, namespace: str, account: str, seconds: float = 3607.0) -> str:
        """A token as a pod of that service account gets it."""
        if ("", "serviceaccounts", namespace, account) not in self.api.store:
            raise KeyError(f"service account {namespace}/{account}")
        return self.api.accounts.issue(namespace, account, seconds)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if len(self.requests) < 100_000:
            self.requests.append(f"{request.method} {request.path}")
        before = self.api.store.version
        try:
            response = self.api.handle(await _read(request))
        except web.HTTPRequestEntityTooLarge:
            problem = Problem(413, "RequestEntityTooLarge", f"limit is {_MAX_BODY}")
            response = Response(problem.code, problem.status)
        except Exception as error:  # the boundary: a mistake of ours must not look like a client's
            _LOG.exception("%s %s", request.method, request.path)
            self.mistakes.append(f"{request.method} {request.path}: {error!r}")
            problem = Problem(500, "InternalError", f"Internal error occurred: {error!r}")
            response = Response(problem.code, problem.status)
        if self.api.store.version != before:
            self._tell()
            if request.method == "DELETE" and self._sweep is None:
                self._sweep = asyncio.get_running_loop().call_later(_TERMINATING_S, self._swept)
        if response.watch is not None:
            return await self._stream(request, response.watch)
        headers = [("Warning", f'299 - "{_escaped(each)}"') for each in response.warnings]
        headers.append(("Content-Type", response.content_type))
        return web.Response(status=response.code, body=json.dumps(response.body).encode(), headers=headers)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _swept(self) -> None:
        self._sweep = None
        if self.api.sweep():
            self._tell()

    async def _stream(self, request: web.Request, watch: Watch) -> web.StreamResponse:
        """Until the client goes, its `timeoutSeconds` are over, or the history does not reach back."""
        seconds = min(_MAX_WATCH_S, float(request.query.get("timeoutSeconds", _MAX_WATCH_S)))
        until = time.monotonic() + seconds
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        stream.enable_chunked_encoding()
        await stream.prepare(request)
        with contextlib.suppress(ConnectionError):
            while (left := until - time.monotonic()) > 0:
                changed = self._changed
                try:
                    news = watch.news()
                except Problem as problem:
                    await stream.write(_line({"type": "ERROR", "object": problem.status}))
                    break
                for each in news:
                    await stream.write(_line(each))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await changed.wait()
        return stream


async def _read(request: web.Request) -> Request:
    authorization = request.headers.get("Authorization", "")
    return Request(
        method=request.method,
        path=request.path,
        query=dict(request.query),
        body=await request.read(),
        content_type=request.headers.get("Content-Type", "application/json"),
        accept=request.headers.get("Accept", ""),
        token=authorization.removeprefix("Bearer ") if authorization.startswith("Bearer ") else "",
        agent=request.headers.get("User-Agent", "unknown"),
        as_user=request.headers.get("Impersonate-User", ""),
    )


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
