"""One inference server over aiohttp: bytes, JSON and server-sent events, no decisions.

Invariants: every failure of the connection, the protocol or the server is an EngineUnavailable that names the address;
every call but the reading of a stream has a deadline; no answer is read beyond its bound, and none of more than some
kilobytes on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Self

import aiohttp

from fairbox.apart import read_apart
from fairbox.bounded_json import loads
from fairbox.errors import FieldError, FieldErrors
from fairbox.telemetry.tracing import carried
from rollout.engines.base import EngineUnavailable
from rollout.engines.events import MOST_DEPTH, EventSplitter, error_text, event_of

_KEEPALIVE_S = 2.0
"""Below the 5 s after which servers close an idle connection, so that none is used while it is being closed."""
_CONNECT_S = 10.0
"""For the opening of a connection."""
_REFUSAL_S = 10.0
"""For the text of a refusal where a stream was wanted."""
_MAX_JSON_BYTES = 8 << 20
"""Most bytes of an unstreamed answer; /server_info, the largest, has some tens of kilobytes per data-parallel rank."""
_MOST_VALUES = 1_000_000
"""Values of such an answer. A value takes more than eight bytes with its key, so that only nonsense has as many."""


def check_url(url: str, field: str) -> str:
    """`url` without a slash at its end. Raises FieldErrors for what is no http address."""
    if not url.startswith(("http://", "https://")) or not url.split("://", 1)[1].strip("/"):
        raise FieldErrors([FieldError(field, f"is {url!r}, must be like http://HOST:PORT")])
    return url.rstrip("/")


class HttpRefusal(EngineUnavailable):
    """A status other than 200; `message` is what the server says."""

    def __init__(self, url: str, status: int, message: str) -> None:
        super().__init__(f"{url}: HTTP {status}: {message}")
        self.status = status
        self.message = message


class EventStream:
    """The events of one answer. `next()` may be cancelled and called again: nothing is lost."""

    def __init__(self, response: aiohttp.ClientResponse, url: str, max_bytes: int) -> None:
        self._response = response
        self._url = url
        self._splitter = EventSplitter(max_bytes)
        self._events: deque[bytes] = deque()

    async def next(self) -> Any:
        """The next event; None: the stream is complete. Raises EngineUnavailable when it ends otherwise, or breaks."""
        while not self._events:
            with _typed(self._url):
                data = await self._response.content.readany()
            if not data:
                raise EngineUnavailable(f"{self._url}: the answer ended before the turn did")
            self._events.extend(self._splitter.feed(data))
        payload = self._events[0]
        try:
            event = await read_apart(len(payload), partial(event_of, payload))
        except EngineUnavailable as error:
            raise EngineUnavailable(f"{self._url}: {error}") from None
        self._events.popleft()
        return event


class EngineHttp:
    """`async with EngineHttp(url) as server`."""

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            headers=self._headers,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        session, self._session = self._session, None
        if session is not None:
            await asyncio.shield(session.close())

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, body: Any, *, max_bytes: int, timeout_s: float | None
    ) -> AsyncIterator[EventStream]:
        """Posts `body`; `timeout_s` bounds the wait for the answer's beginning, None where the caller does. Leaving it
        early drops the request."""
        with _typed(self.url):
            async with asyncio.timeout(timeout_s):
                response = await self._open().post(self.url + path, json=body, headers=dict(carried()))
        try:
            if response.status != 200:
                with _typed(self.url + path):
                    async with asyncio.timeout(_REFUSAL_S):
                        raise await _refusal(self.url + path, response)
            yield EventStream(response, self.url, max_bytes)
        finally:
            response.close()

    async def get(self, path: str, *, timeout_s: float) -> Any:
        """The JSON of an answer, None for an empty one."""
        return await self._call("GET", path, None, timeout_s)

    async def post(self, path: str, body: Any, *, timeout_s: float) -> Any:
        """The JSON of an answer, None for an empty one."""
        return await self._call("POST", path, body, timeout_s)

    async def _call(self, method: str, path: str, body: Any, timeout_s: float) -> Any:
        with _typed(f"{self.url}{path}"):
            async with (
                asyncio.timeout(timeout_s),
                self._open().request(method, self.url + path, json=body) as response,
            ):
                if response.status != 200:
                    raise await _refusal(self.url + path, response)
                data = await _read(response)
                try:
                    return await _parsed(data) if data else None
                except ValueError:
                    return None  # plain text, as some answers without content are

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EngineUnavailable("the engine is closed")
        return self._session


@contextlib.contextmanager
def _typed(where: str) -> Iterator[None]:
    """Failures of the connection as EngineUnavailable. A cancelled call stays cancelled."""
    try:
        yield
    except TimeoutError:  # of asyncio and of aiohttp, which derives its own from it
        raise EngineUnavailable(f"{where}: no answer in time") from None
    except aiohttp.ClientConnectorError as error:
        if not isinstance(error.os_error, ConnectionRefusedError):
            raise EngineUnavailable(f"{where}: {type(error).__name__}: {error}") from None
        raise EngineUnavailable(
            f"{where}: Connection refused; start the server, or set engine.urls to its address"
        ) from None
    except (aiohttp.ClientError, OSError, RuntimeError) as error:
        raise EngineUnavailable(f"{where}: {type(error).__name__}: {error}") from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    data = await response.content.read(_MAX_JSON_BYTES + 1)
    while not response.content.at_eof() and len(data) <= _MAX_JSON_BYTES:
        data += await response.content.read(_MAX_JSON_BYTES + 1 - len(data))
    if len(data) > _MAX_JSON_BYTES:
        raise EngineUnavailable(f"{response.url}: answered with more than {_MAX_JSON_BYTES} bytes")
    return data


async def _parsed(data: bytes) -> Any:
    """Its JSON. Raises ValueError."""
    return await read_apart(len(data), partial(loads, data, depth=MOST_DEPTH, left=[_MOST_VALUES]))


async def _refusal(url: str, response: aiohttp.ClientResponse) -> HttpRefusal:
    data = await _read(response)
    try:
        message = error_text(await _parsed(data))
    except ValueError:
        message = data[:300].decode(errors="replace")
    return HttpRefusal(url, response.status, message)
