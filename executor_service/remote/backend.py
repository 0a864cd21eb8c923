"""The `Work` that forwards programs to a SandboxFusion-compatible URL.

Invariants: one request for each attempt, and no repetition; a program that may have run has a result (SANDBOX_ERROR,
cause INFRA, where the answer was lost), so its request_id is spent; one that has not is a typed error, and its id is
free again. Cancelling closes the connection; whether the program dies with it is up to the other end.
"""

from __future__ import annotations

import asyncio
import json
import logging
from types import TracebackType
from urllib.parse import urlsplit

import aiohttp

from executor_service.languages import LANGUAGES
from executor_service.model import Cause, ExecutionResult, IsolationLevel, Limits, Outcome, RunRequest
from executor_service.remote.errors import RemoteBusy, RemoteDown
from executor_service.remote.translate import Facts, InvalidReply, body_of, facts_of
from executor_service.sandbox.report import Stream
from executor_service.server.work import Attempt
from executor_service.v1 import executor_pb2 as pb
from executor_service.validation import LimitPolicy
from fairbox.clock import Clock
from fairbox.errors import ConfigError, FairboxError, FieldError, FieldErrors

__all__ = ["RemoteSandbox"]

_GRACE_S = 60.0
"""What queues, set-up and the way back may take at the other end, beyond compiling and running."""
_CONNECT_S = 10.0
_RETRY_S = 1.0
"""Advice where the other end gives none."""
_LONGEST_RETRY_S = 60.0
_MAX_REPLY = 64 << 20
"""Of a reply, beyond twice what may be returned as files."""
_BUSY = (429, 503)
_UNACCEPTABLE = (400, 413, 422)
_LOG = logging.getLogger("executor_service.remote")


class RemoteSandbox:
    """`url` is the whole URL of /run_code. `policy` has this server's limits for requests that name none."""

    def __init__(self, url: str, clock: Clock, *, name: str, policy: LimitPolicy) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"sandbox_fusion_url is {url!r}, must be like http://HOST:PORT/run_code")
        self._url = url
        self.place = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        """Where it is, without path and password, which may be secret."""
        self._clock = clock
        self._name = name
        self._policy = policy
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> RemoteSandbox:
        # How many requests there are at once is up to the admission queue. A connection for each: one that was kept may
        # be closed by the other end just when a program is sent, and then nobody knows whether it has run.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        self._http = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def probe(self) -> None:
        """FairboxError unless a program runs there."""
        request = RunRequest(code=b"print(6 * 7)", language="python", limits=self._defaults("python"))
        try:
            facts = await self._ask(request, self._body(request))
        except (RemoteBusy, RemoteDown, FieldErrors) as error:
            raise FairboxError(f"sandbox_fusion_url: a program could not be run: {error}") from None
        if facts["outcome"] is not Outcome.FINISHED or facts["stdout"].data.strip() != b"42":
            said = facts["message"] or f"it printed {facts['stdout'].data[:100]!r}"
            raise FairboxError(f"sandbox_fusion_url: {self.place} could not run a program as it should: {said}")

    async def perform(self, attempt: Attempt) -> ExecutionResult:
        admitted, claim = self._clock.now(), attempt.claim
        body = self._body(attempt.request)
        await claim.confirmed()
        claim.check()
        # Nothing is awaited from here on to the moment in which a loss would be noticed.
        attempt.started = True
        setup_s = self._clock.now() - admitted
        asking = asyncio.ensure_future(self._ask(attempt.request, body))
        lapsed = False

        def lost() -> None:
            nonlocal lapsed
            lapsed = True
            asking.cancel()

        try:
            claim.when_lost(lost)
            await asyncio.wait([asking])
            if lapsed and asking.cancelled():
                message = "Given up: the limiter no longer vouches for the lease that the program ran under."
                return self.result(attempt, Outcome.CANCELLED, Cause.INFRA, message)
            facts = asking.result()
        except (RemoteBusy, RemoteDown, FieldErrors):
            attempt.started = False
            raise
        finally:
            asking.cancel()
            await asyncio.wait([asking])
        if attempt.observe is not None:
            self._show(attempt, facts)
        return self._result(attempt, {"setup_time_s": setup_s, **facts})

    def result(self, attempt: Attempt, outcome: Outcome, cause: Cause, message: str) -> ExecutionResult:
        return self._result(attempt, {"outcome": outcome, "cause": cause, "message": message})

    def _result(self, attempt: Attempt, facts: Facts) -> ExecutionResult:
        common = {"isolation_level": IsolationLevel.NONE, "queue_time_s": attempt.queue_s, "served_by": self._name}
        return ExecutionResult(**{**common, "request_id": attempt.request.request_id, **facts})

    def _body(self, request: RunRequest) -> dict[str, object]:
        return body_of(request, default_memory_bytes=self._defaults(request.language).memory_bytes)

    def _defaults(self, language: str) -> Limits:
        return self._policy.resolve(pb.Limits(), [], LANGUAGES[language].needs)

    async def _ask(self, request: RunRequest, body: dict[str, object]) -> Facts:
        """Raises RemoteBusy, RemoteDown and FieldErrors where no program has run."""
        assert self._http is not None
        limits = request.limits
        try:
            async with (
                asyncio.timeout(limits.compile_time_s + limits.wall_time_s + _GRACE_S),
                self._http.post(self._url, json=body, allow_redirects=False) as response,
            ):
                data = await _read(response, _MAX_REPLY + 2 * limits.return_bytes)
                if response.status == 200:
                    return facts_of(json.loads(data), request)
                return self._refused(response, data)
        except aiohttp.ClientConnectorError as error:  # before anything was sent
            raise RemoteDown(f"{self.place} can't be reached: {error.os_error.strerror or error.os_error}") from None
        except aiohttp.ConnectionTimeoutError:
            raise RemoteDown(f"{self.place} can't be reached within {_CONNECT_S:g} s") from None
        except aiohttp.InvalidURL:
            raise RemoteDown("sandbox_fusion_url is no URL") from None
        except TimeoutError:
            return _failed(f"{self.place} did not answer in time")
        except aiohttp.ClientError as error:
            return _failed(f"the connection to {self.place} broke: {type(error).__name__}")
        except (InvalidReply, ValueError, RecursionError) as error:
            return _failed(f"the answer of {self.place} can't be read: {error}")

    def _refused(self, response: aiohttp.ClientResponse, data: bytes) -> Facts:
        """Names every status but 200. A 504 without Retry-After may come from a gateway whose program ran on."""
        said = f"{self.place} answered {response.status}: {data[:300].decode('utf-8', 'replace')}"
        hint = response.headers.get("Retry-After", "")
        if response.status in _BUSY or (response.status == 504 and hint):
            raise RemoteBusy(said, min(float(hint), _LONGEST_RETRY_S) if hint.isdecimal() else _RETRY_S)
        if response.status in _UNACCEPTABLE:
            raise FieldErrors([FieldError("request", f"is not acceptable to the remote sandbox: {said}")])
        if response.status < 500:
            raise RemoteDown(said)
        return _failed(said)

    @staticmethod
    def _show(attempt: Attempt, facts: Facts) -> None:
        """A remote sandbox tells its output at the end only."""
        assert attempt.observe is not None
        for stream, name in ((Stream.STDOUT, "stdout"), (Stream.STDERR, "stderr")):
            if name in facts and facts[name].data:
                attempt.observe(stream, facts[name].data)


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        data += chunk
        if len(data) > most:
            raise InvalidReply(f"it has more than {most} bytes")
    return bytes(data)


def _failed(reason: str) -> Facts:
    """A result for a program that may have run, and of which nothing is known."""
    _LOG.error("%s", reason)
    message = f"{reason[:1].upper()}{reason[1:]}; the program may have run."
    return {"outcome": Outcome.SANDBOX_ERROR, "cause": Cause.INFRA, "message": message}
