"""The HTTP side of the capture gateway: routes, bodies, streams, tokens. A thin shell; decisions are made elsewhere.

Invariants: `/health` waits for nothing and needs no token; a body is refused by its size before it is read; every error
has OpenAI's form; a client that goes away cancels its turn; no answer holds a traceback.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from fairbox.apart import read_apart
from fairbox.errors import FieldErrors
from fairbox.net.http_server import HttpServer
from fairbox.net.serving import check_address
from fairbox.security.tls import ServerTls
from fairbox.telemetry import logs, tracing
from rollout.capture.errors import ApiError, UnknownTrajectoryError, bad_parameter
from rollout.capture.messages import shorten
from rollout.capture.record import record_json
from rollout.capture.replies import ReplyBody, branch_headers, chunks, completion, sse
from rollout.capture.requests import ChatRequest, parse_body, parse_request
from rollout.capture.settings import CaptureSettings
from rollout.engines.base import EngineUnavailable

if TYPE_CHECKING:
    from rollout.capture.gateway import CaptureGateway

TRAJECTORY_HEADER = "x-fairbox-trajectory"
"""Names the trajectory of a request whose path does not."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_READ_S = 60.0
"""A client that takes longer to send its body is cut off."""
_MAX_BODY_BYTES = 4 << 20
_KEEP_ALIVE_S = 15.0
"""A stream that waits for its turn says so at such intervals."""
_LAST_CALLS_S = 1.0
"""Requests in flight when the server is stopped get so long before they are cancelled."""
_PIECES = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
"""Makes long bodies in small pieces, between which other threads have their turn."""
_LOG = logging.getLogger("fairbox.capture")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CaptureServer:
    """`start()` listens, `stop()` ends everything. `address` says where, also for port 0."""

    def __init__(self, gateway: CaptureGateway, settings: CaptureSettings) -> None:
        self._keyring = settings.keyring()
        check_address(settings.listen, insecure=settings.insecure or self._keyring is not None)
        self._gateway = gateway
        self._settings = settings
        application = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._errors, self._guard])
        for method, path, handler in (
            ("GET", "/health", self._health),
            ("GET", "/statistics", self._statistics),
            ("GET", "/v1/models", self._models),
            ("GET", "/v1/models/{model:.+}", self._model),
            ("POST", "/v1/chat/completions", self._chat),
            ("GET", "/t/{trajectory}", self._record),
            ("DELETE", "/t/{trajectory}", self._delete),
            ("POST", "/t/{trajectory}/reward", self._reward),
        ):
            for prefix in ("", "/t/{trajectory}") if path.startswith("/v1") else ("",):
                application.router.add_route(method, prefix + path, handler)
        self._server = HttpServer(
            application,
            settings.listen,
            setting="listen",
            logger=_LOG.name,
            last_calls_s=_LAST_CALLS_S,
            auto_decompress=False,  # nothing is taken that aiohttp would unfold on the event loop
        )

    async def start(self) -> None:
        """Listens. Raises FairboxError for an address or a certificate that can't be had."""
        settings = self._settings
        await self._server.start(ServerTls(settings.tls_cert, settings.tls_key).https() if settings.tls_cert else None)

    async def stop(self) -> None:
        """Ends every request. Idempotent."""
        await self._server.stop()

    @property
    def address(self) -> str:
        return self._server.address

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return _json({"status": "ok"})

    async def _statistics(self, _: web.Request) -> web.StreamResponse:
        return _json(dataclasses.asdict(self._gateway.statistics()))

    async def _models(self, _: web.Request) -> web.StreamResponse:
        return _json({"object": "list", "data": [self._card(name) for name in self._names()]})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["model"]
        if name not in self._names():
            raise ApiError(404, f"the model {name!r} does not exist", code="model_not_found", param="model")
        return _json(self._card(name))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        trajectory_id = _trajectory_id(request)
        traceparent = request.headers.get("traceparent", "")
        with (
            logs.bound(trajectory=trajectory_id),
            tracing.call_span("POST /v1/chat/completions", traceparent, trajectory_id),
        ):
            return await self._turn(request, trajectory_id)

    async def _turn(self, request: web.Request, trajectory_id: str) -> web.StreamResponse:
        entry = self._gateway.begin(trajectory_id)  # before the body is read, so that bodies in memory are bounded, too
        try:
            data = await _body(request)
            asked = await read_apart(len(data), lambda: parse_request(data, self._gateway.rules))
            turn = self._gateway.start(entry, asked)
            try:
                if asked.stream:
                    return await self._stream(request, asked, turn)
                await asyncio.wait({turn})
                answer = _answer_of(turn)
                return _json(completion(answer), headers=branch_headers(answer.turn))
            finally:
                turn.cancel()
                await asyncio.wait({turn})
        finally:
            self._gateway.end(entry)

    async def _stream(
        self, request: web.Request, asked: ChatRequest, turn: asyncio.Task[ReplyBody]
    ) -> web.StreamResponse:
        """The turn in pieces. The status waits for the turn as long as a client may be kept waiting, so that most
        errors have one; later ones are events."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        while not (await asyncio.wait({turn}, timeout=_KEEP_ALIVE_S))[0]:
            if not response.prepared:
                await response.prepare(request)
            await response.write(b": the turn is being sampled\n\n")
        try:
            answer = _answer_of(turn)
        except ApiError as error:
            if not response.prepared:
                raise
            await response.write(sse(error.body()))
            return response
        if not response.prepared:
            response.headers.update(branch_headers(answer.turn))
            await response.prepare(request)
        events = [sse(chunk) for chunk in chunks(answer, include_usage=asked.include_usage)]
        await response.write(b"".join([*events, b"data: [DONE]\n\n"]))
        return response

    async def _record(self, request: web.Request) -> web.StreamResponse:
        trajectory_id, gateway = _trajectory_id(request), self._gateway

        def made() -> bytes:
            found = gateway.trajectory(trajectory_id)
            body = record_json(found, model=gateway.engine.model_name, decode=gateway.chat.decode_plain)
            return "".join(_PIECES.iterencode(body)).encode()

        # A trajectory has a million tokens at most.
        return web.Response(body=await asyncio.to_thread(made), content_type="application/json")

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        trajectory_id = _trajectory_id(request)
        self._gateway.delete(trajectory_id)
        return _json({"trajectory_id": trajectory_id, "deleted": True})

    async def _reward(self, request: web.Request) -> web.StreamResponse:
        trajectory_id = _trajectory_id(request)
        data = await _body(request)
        body = await read_apart(len(data), lambda: parse_body(data))
        value = body.get("reward") if isinstance(body, dict) else None
        try:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError
            reward = float(value)
        except (TypeError, OverflowError):
            raise bad_parameter("reward", f"is {shorten(value)}, must be a number") from None
        self._gateway.set_reward(trajectory_id, reward)
        return _json({"trajectory_id": trajectory_id, "reward": reward})

    def _names(self) -> list[str]:
        return list(self._gateway.rules.models) or [self._gateway.engine.model_name]

    def _card(self, name: str) -> dict[str, Any]:
        longest = self._gateway.engine.max_model_tokens
        return {"id": name, "object": "model", "created": 0, "owned_by": "fairbox", "max_model_len": longest}

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        keyring = self._keyring if request.path != "/health" else None
        if keyring is not None and keyring.table().find(_bearer(request)) is None:
            raise ApiError(401, "the bearer token is missing or wrong; clients of OpenAI's send their api_key as it")
        return await handler(request)

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as error:
            return _json(error.body(), error.status, error.headers())
        except FieldErrors as errors:
            first = errors.errors[0]
            return _json(bad_parameter(first.field, first.problem).body(), 400)
        except EngineUnavailable as error:  # it is closed, so it can't even say how long its contexts may be
            refused = ApiError(503, f"the engine is unavailable: {error}")
            return _json(refused.body(), refused.status, refused.headers())
        except UnknownTrajectoryError as error:
            return _json(ApiError(404, str(error), code="trajectory_not_found").body(), 404)
        except web.HTTPException as error:
            return _json(_http_error(request, error).body(), error.status, _allow(error))
        except asyncio.CancelledError:
            raise
        except Exception:  # the boundary: its reason is in the log, and not for clients
            _LOG.exception("a request failed for a reason that nobody foresaw")
            unforeseen = ApiError(500, "internal error of the gateway", code="internal_error")
            return _json(unforeseen.body(), 500)


def _json(body: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    text = json.dumps(body, separators=(",", ":"), allow_nan=False)
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


def _answer_of(turn: asyncio.Task[ReplyBody]) -> ReplyBody:
    """Returns a finished turn's answer. Raises ApiError."""
    if turn.cancelled():
        raise ApiError(404, "the trajectory was deleted while its turn was sampled", code="trajectory_not_found")
    return turn.result()


def _trajectory_id(request: web.Request) -> str:
    given = request.match_info.get("trajectory") or request.headers.get(TRAJECTORY_HEADER)
    if given is None:
        problem = "is missing: put /t/ID before /v1 in the base URL, or send this header"
        raise bad_parameter(TRAJECTORY_HEADER, problem, code="missing_trajectory")
    if _ID.fullmatch(given) is None:
        problem = f"is {given[:40]!r}, must be 1 to 128 letters, digits, '.', '_' and '-'"
        raise bad_parameter("trajectory", problem, code="invalid_trajectory")
    return given


async def _body(request: web.Request) -> bytes:
    """A body as it was sent. Raises ApiError."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        problem = f"is {shorten(encoding)}, must not be set: bodies are taken as they are"
        raise ApiError(415, f"Content-Encoding {problem}", code="unsupported_media_type")
    try:
        async with asyncio.timeout(_READ_S):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None


def _http_error(request: web.Request, error: web.HTTPException) -> ApiError:
    """aiohttp's own refusals: no such path, no such method, too large, too slow."""
    messages = {
        404: f"there is no {request.path[:80]!r} here; agents use /t/ID/v1/chat/completions",
        413: f"the body is larger than {_MAX_BODY_BYTES} bytes",
    }
    code = "unknown_url" if error.status == 404 else error.reason.lower().replace(" ", "_")
    return ApiError(error.status, messages.get(error.status, error.reason), code=code)


def _allow(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


def _bearer(request: web.Request) -> str:
    """The token of a header `Authorization: Bearer TOKEN`; empty where there is none."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""
