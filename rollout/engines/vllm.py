"""A vLLM server as an engine, over HTTP: ids in; ids and logprobs out.

Weights are the server's affair: `weight_version` is what the caller says they are, and they must not change while the
engine is in use. A request that is cancelled, or whose time is over, closes its connection, on which vLLM ends the
generation. Needs aiohttp (extra `gateway`).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import aiohttp

from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import FieldError, FieldErrors
from rollout.engines.base import (
    EngineStatistics,
    EngineUnavailable,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    VersionSpan,
    check_request,
)
from rollout.engines.vllm_api import LogprobsMode, TurnReader, check_exact, completion_body, longest_context

__all__ = ["LogprobsMode", "VllmEngine"]

_CONNECT_S = 10.0
_MAX_ERROR_BYTES = 4096


@dataclass(slots=True)
class _Flight:
    """One request on its way."""

    submitted: float
    first: float | None = None


class VllmEngine:
    """`async with VllmEngine("http://host:8000", vocab_size=...) as engine`.

    vocab_size: of the model's config, because the server does not say; model: the served name, None where there is one
    alone; max_model_tokens: None for the server's; logprobs_mode: what the server was started with.
    """

    def __init__(
        self,
        url: str,
        *,
        vocab_size: int,
        model: str | None = None,
        max_model_tokens: int | None = None,
        logprobs_mode: LogprobsMode = LogprobsMode.RAW,
        weight_version: str = "initial",
        api_key: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._max_model_tokens = max_model_tokens
        self._mode = logprobs_mode
        self._version = weight_version
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._clock = clock or MonotonicClock()
        self._session: aiohttp.ClientSession | None = None
        self._waiting = self._running = 0
        self._busy_since = 0.0
        self._statistics = EngineStatistics()
        self.vocab_size = vocab_size

    @property
    def model_name(self) -> str:
        return self._model or "vllm"

    @property
    def max_model_tokens(self) -> int:
        if self._max_model_tokens is None:
            raise EngineUnavailable("the engine is closed")
        return self._max_model_tokens

    async def __aenter__(self) -> Self:
        """Asks the server for its model. Raises EngineUnavailable."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        connector = aiohttp.TCPConnector(limit=0)  # what runs at once is the caller's affair, and vLLM queues
        session = aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector)
        try:
            self._model, longest = longest_context(await self._models(session), self._model)
            if self._max_model_tokens is None:
                if longest is None:
                    raise EngineUnavailable("vLLM does not say its longest context: give max_model_tokens")
                self._max_model_tokens = longest
        except BaseException:
            await session.close()
            raise
        self._session = session
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            await asyncio.shield(session.close())

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        if self._session is None:
            raise EngineUnavailable("the engine is closed")
        check_request(request, vocab_size=self.vocab_size, max_model_tokens=self.max_model_tokens)
        check_exact(request.params, self._mode)
        flight = _Flight(self._clock.now())
        reader = TurnReader(request.input_ids, request.params)
        self._begin()
        try:
            aborted = await self._read(self._session, request, reader, flight)
        except BaseException:
            self._statistics = replace(self._statistics, aborted=self._statistics.aborted + 1)
            raise
        finally:
            self._end(flight)
        return self._result(request, reader, flight, aborted=aborted)

    def statistics(self) -> EngineStatistics:
        busy = self._clock.now() - self._busy_since if self._running else 0.0
        found = self._statistics
        return replace(found, queued=self._waiting, running=self._running - self._waiting, busy_s=found.busy_s + busy)

    async def _models(self, session: aiohttp.ClientSession) -> Any:
        try:
            async with asyncio.timeout(_CONNECT_S), session.get(f"{self._url}/v1/models") as answer:
                if answer.status != 200:
                    raise EngineUnavailable(f"vLLM on {self._url} answers {answer.status} for its models")
                return await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise EngineUnavailable(f"no vLLM on {self._url}: {error or type(error).__name__}") from None

    async def _read(
        self, session: aiohttp.ClientSession, request: GenerationRequest, reader: TurnReader, flight: _Flight
    ) -> bool:
        """Reads the turn; whether its time was over before it ended."""
        body = completion_body(request, model=self.model_name)
        try:
            async with asyncio.timeout(request.queue_timeout_s) as deadline:
                async with session.post(f"{self._url}/v1/completions", json=body) as answer:
                    if answer.status != 200:
                        raise await _refusal(answer)
                    async for data in answer.content.iter_any():
                        reader.feed(data)
                        if flight.first is None and reader.ids:
                            flight.first = self._clock.now()
                            self._waiting -= 1
                            limit = request.time_limit_s
                            loop = asyncio.get_running_loop()
                            deadline.reschedule(None if limit is None else loop.time() + limit)
        except TimeoutError:
            if flight.first is not None and deadline.expired():
                return reader.finish is None
            raise EngineUnavailable(f"vLLM sampled nothing within {request.queue_timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            raise EngineUnavailable(f"the connection to vLLM broke: {error or type(error).__name__}") from None
        reader.check_complete()
        return False

    def _result(
        self, request: GenerationRequest, reader: TurnReader, flight: _Flight, *, aborted: bool
    ) -> GenerationResult:
        finish = FinishReason.ABORT if aborted else reader.finish
        assert finish is not None
        assert flight.first is not None
        now, found, ids = self._clock.now(), self._statistics, tuple(reader.ids)
        self._statistics = replace(
            found,
            finished=found.finished + 1,
            prompt_tokens=found.prompt_tokens + len(request.input_ids),
            cached_tokens=found.cached_tokens + reader.cached_tokens,
            sampled_tokens=found.sampled_tokens + len(ids),
        )
        return GenerationResult(
            ids=ids,
            logprobs=tuple(reader.logprobs),
            finish=finish,
            versions=(VersionSpan(self._version, 0, len(ids)),),
            queue_s=flight.first - flight.submitted,
            run_s=now - flight.first,
            cached_tokens=reader.cached_tokens,
        )

    def _begin(self) -> None:
        if not self._running:
            self._busy_since = self._clock.now()
        self._running += 1
        self._waiting += 1

    def _end(self, flight: _Flight) -> None:
        self._running -= 1
        self._waiting -= flight.first is None
        if not self._running:
            busy = self._statistics.busy_s + self._clock.now() - self._busy_since
            self._statistics = replace(self._statistics, busy_s=busy)


async def _refusal(answer: aiohttp.ClientResponse) -> Exception:
    """What a status other than 200 means: 400 and 422 are the request's fault, all others the service's."""
    text = (await answer.content.read(_MAX_ERROR_BYTES)).decode("utf-8", "replace")
    try:
        body = json.loads(text)
        message = str((body.get("error") or body).get("message") or text)
    except (ValueError, AttributeError):
        message = text
    if answer.status in (400, 422):
        return FieldErrors([FieldError("request", f"was refused by vLLM: {message[:400]}")])
    return EngineUnavailable(f"vLLM answered {answer.status}: {message[:200]}")
