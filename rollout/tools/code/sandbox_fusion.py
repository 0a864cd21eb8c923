"""Runs programs of trajectories at a service that speaks SandboxFusion's HTTP interface: `/run_code` at any URL.

No executor binds the lease of such a program, so the lease has a hold time, the bound of the whole request. It is given
back when an answer has come, and with a word that an adaptive limit understands: 429 and 503 are OVERLOADED, 504 and
no answer in time are TIMEOUT. A call that was cancelled or whose connection broke gives nothing back, because such a
service goes on running a program whose caller has gone: the program counts until the hold time is over, or without the
global limit keeps its worker for as long.

Invariants: every wait has a deadline; no more than a stated number of bytes is read; what the program could not have
caused is an InfraError after a second attempt; the path of the URL, which can hold a token, is in no error. It needs
aiohttp (extra `gateway`).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Mapping
from typing import Any, Self

import aiohttp

from executor_service import Cause, ExecutionResult, Outcome
from fairbox.apart import read_apart
from fairbox.clock import Clock
from fairbox.errors import ConfigError
from fairbox.telemetry.tracing import carried
from limiter import LeaseRefused, LimiterClient, LimiterError, ReleaseOutcome, UnknownBucket
from rollout.tools.base import InfraError
from rollout.tools.code.client import BUCKET, BadProgram, CodeOutcome, RetryableError, Slot, SlotPool
from rollout.tools.code.runner import PROBE_S, Runner
from rollout.tools.code.sandbox_fusion_wire import (
    MOST_CODE,
    MOST_DETAIL,
    MOST_REPLY,
    BadReply,
    detail_of,
    hold_s,
    read_reply,
    request_body,
    request_s,
    retry_after_s,
    shown_url,
)
from rollout.tools.code.settings import ExecutorToolConfig

_CONNECT_S = 10.0
"""For the opening of a connection."""
_KEEPALIVE_S = 2.0
"""Below the 5 s after which uvicorn closes an idle connection, so that none is used while it is being closed."""
_ASK_S = 5.0
"""For the question whether the limiter gives such leases; one that is not there yet is not waited for."""
_MOST_REFUSAL = 16 << 10
"""Bytes of a refusal that are read."""
_HEADERS = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
_AGAIN = (408, 425, 429)
"""Statuses below 500 by which a service says that it may be asked again."""


class SandboxRefusedError(RetryableError):
    """The service did not do it. `status` is HTTP's, which tells the limiter how the work ended."""

    def __init__(self, message: str, status: int, retry_after: float) -> None:
        super().__init__(message, retry_after_s=retry_after)
        self.status = status


class SandboxFusionClient(SlotPool):
    """`async with SandboxFusionClient(url, config, limiter=..., clock=...) as client`: one pool of connections."""

    def __init__(self, url: str, config: ExecutorToolConfig, *, limiter: LimiterClient | None, clock: Clock) -> None:
        super().__init__(config, limiter=limiter, clock=clock)
        self.name = f"sandbox at {shown_url(url)}"
        """For errors."""
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.config.workers, keepalive_timeout=_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # a small answer could unfold to a large one
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        session, self._session = self._session, None
        if session is not None:
            await asyncio.shield(session.close())

    async def check_limiter(self) -> None:
        """Raises ConfigError if the limiter is there and gives no leases of this length: every call would fail."""
        if self._limiter is None:
            return
        hold = hold_s(self.config.default_timeout)
        try:
            async with asyncio.timeout(_ASK_S), self._limiter.lease(BUCKET, queue_timeout=1.0, hold=hold) as lease:
                self._limiter.release(lease, ReleaseOutcome.UNUSED)
        except (LeaseRefused, UnknownBucket) as error:
            raise ConfigError(
                f"sandbox_fusion_url needs leases of {hold:g} s, which the limiter does not give: {error}. Start it "
                f"with buckets.{BUCKET}.max_hold_s={hold:g} or more, or set enable_global_rate_limit=false"
            ) from error
        except (LimiterError, TimeoutError):
            return  # it is busy, or not there yet

    async def execute(self, code: str, slot: Slot, timeout: float) -> ExecutionResult:
        """Runs one program and returns its result, whose cause is not INFRA. Raises BadProgram for a text that the
        service does not take, RetryableError if it failed, and InfraError if asking again makes no sense."""
        size, config, within = len(code.encode()), self.config, request_s(timeout)
        body = await read_apart(size, lambda: request_body(code, config.language, timeout, config.memory_limit_mb))
        slot.kept_s = hold_s(timeout)  # until an answer has come, or it is certain that nothing was sent
        try:
            async with asyncio.timeout(within):
                status, headers, data, whole = await self._post(body, slot)
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
            slot.kept_s = 0.0
            raise RetryableError(f"{self.name} can't be reached: {_said(error)}") from error
        except TimeoutError as error:
            slot.kept_s = 0.0  # the program's own time is over, too
            raise RetryableError(f"{self.name} gave no answer within {within:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise RetryableError(f"{self.name} broke the connection: {_said(error)}") from error
        if status != 200:
            raise self._refusal(status, headers, data, size)
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise RetryableError(f"{self.name} answered with a Content-Encoding that was not asked for")
        if not whole:
            return self._too_long(data)
        try:
            return await read_apart(len(data), lambda: read_reply(data, timeout))
        except BadReply as error:
            raise RetryableError(f"{self.name} gave no result: {error}") from error

    async def _post(self, body: bytes, slot: Slot) -> tuple[int, Mapping[str, str], bytes, bool]:
        """Returns (status, headers, the body or the beginning of it, whether it is all)."""
        if self._session is None:
            raise RuntimeError(f"{type(self).__name__} is used outside its `async with` block")
        headers = {**_HEADERS, **dict(carried())}
        # In pieces, and never to another address than the one that was set.
        sent = self._session.post(self._url, data=io.BytesIO(body), headers=headers, allow_redirects=False)
        async with sent as response:
            slot.kept_s = 0.0  # it answers when the program has ended
            most = MOST_REPLY if response.status == 200 else _MOST_REFUSAL
            data = bytearray()
            async for piece in response.content.iter_any():
                data += piece
                if len(data) > most:
                    response.close()
                    return response.status, response.headers, bytes(data[:most]), False
            return response.status, response.headers, bytes(data), True

    def _refusal(self, status: int, headers: Mapping[str, str], data: bytes, size: int) -> Exception:
        """Returns the exception for a status other than 200."""
        detail, blamed = detail_of(data)
        if status == 413:  # nothing but the code makes a request large
            return BadProgram(f"the code has {size} bytes, which the sandbox does not take")
        if status == 422 and blamed:
            return BadProgram("the code is no text that the sandbox takes")
        message = f"{self.name} answered HTTP {status}: {detail or 'and nothing else'}"
        if status in _AGAIN or status >= 500:
            return SandboxRefusedError(message, status, retry_after_s(headers.get("Retry-After")))
        return InfraError(message)

    def _too_long(self, data: bytes) -> ExecutionResult:
        """Blames the program for a reply that begins as one: its output made it so long. Raises RetryableError."""
        if not data.lstrip().startswith(b"{"):
            raise RetryableError(f"{self.name} answered with more than {MOST_REPLY} bytes that are no reply")
        message = f"The program's output is cut: it makes a reply of more than {MOST_REPLY} bytes."
        return ExecutionResult(Outcome.OUTPUT_LIMIT, Cause.POLICY, message=message)


class SandboxFusionRunner(Runner):
    """Programs of trajectories, without state between them, each in a sandbox of the service."""

    def __init__(self, client: SandboxFusionClient) -> None:
        self.client = client

    async def create(self, trajectory_id: str, options: Mapping[str, Any]) -> None:
        """Raises InfraError for a task that names a workspace: the model could have caused nothing."""
        if options.get("workspace") is not None:
            raise InfraError("the task names a workspace, which code at sandbox_fusion_url can't have")

    async def run(self, trajectory_id: str, code: str, timeout: float) -> CodeOutcome:
        size = len(code.encode())
        if size > MOST_CODE:
            raise BadProgram(f"the code has {size} bytes, must have at most {MOST_CODE}")
        # A second attempt is safe: a program reaches nothing outside its own sandbox, and nobody has seen a result of
        # the first one. Should that one still run, it counts beside this one.
        return await self.client.attempts(lambda _: self._program(code, timeout))

    async def probe(self) -> None:
        with contextlib.suppress(BadProgram):  # it answers
            await self._program("pass", PROBE_S)

    async def _program(self, code: str, timeout: float) -> CodeOutcome:
        client = self.client
        began = client.clock.now()
        async with client.slot(hold=hold_s(timeout)) as slot:
            result = await client.execute(code, slot, timeout)
            return client.outcome(result, slot, began)


def _said(error: aiohttp.ClientError | OSError) -> str:
    """Says what happened without the address, whose path some errors repeat."""
    said = error.message if isinstance(error, aiohttp.ClientResponseError) else getattr(error, "strerror", None)
    return f"{type(error).__name__}{f': {said}' if said else ''}"[:MOST_DETAIL]
