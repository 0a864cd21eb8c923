"""A vLLM server as an engine, over HTTP: ids in; ids and logprobs out.

Weights are the server's affair, and must not change while the engine is in use. A request that is cancelled, or whose
time is over, closes its connection, on which vLLM ends the generation. Needs aiohttp (extra `gateway`).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from fairbox.clock import MonotonicClock
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
from rollout.engines.gate import TurnFigures
from rollout.engines.http import EngineHttp, HttpRefusal, check_url
from rollout.engines.vllm.api import (
    MAX_EVENT_BYTES,
    LogprobsMode,
    TurnReader,
    check_exact,
    completion_body,
    longest_context,
)

_CONNECT_S = 10.0
"""For the list of models."""
_WEIGHTS = "initial"
"""Version of the server's weights."""


@dataclass(slots=True)
class _Flight:
    """One request on its way."""

    submitted: float
    first: float | None = None


class VllmEngine:
    """`async with VllmEngine("http://host:8000", vocab_size=...) as engine`.

    vocab_size: of the model's config, because the server does not say; logprobs_mode: what the server was started with.
    """

    def __init__(
        self,
        url: str,
        *,
        vocab_size: int,
        logprobs_mode: LogprobsMode = LogprobsMode.RAW,
        api_key: str = "",
    ) -> None:
        self._http = EngineHttp(check_url(url, "url"), api_key=api_key)
        self._opened = False
        self._model = "vllm"
        self._max_model_tokens: int | None = None
        self._mode = logprobs_mode
        self._clock = MonotonicClock()
        self._figures = TurnFigures()
        self._running = 0
        """Turns of which an id was sampled."""
        self.vocab_size = vocab_size

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def max_model_tokens(self) -> int:
        if self._max_model_tokens is None:
            raise EngineUnavailable("the engine is closed")
        return self._max_model_tokens

    async def __aenter__(self) -> Self:
        """Asks the server for its model. Raises EngineUnavailable."""
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(self._http)
            models = await http.get("/v1/models", timeout_s=_CONNECT_S)
            self._model, self._max_model_tokens = longest_context(models)
            stack.pop_all()
        self._opened = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened = False
        await self._http.__aexit__(kind, error, trace)

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        if not self._opened:
            raise EngineUnavailable("the engine is closed")
        check_request(request, vocab_size=self.vocab_size, max_model_tokens=self.max_model_tokens)
        check_exact(request.params, self._mode)
        flight = _Flight(self._clock.now())
        reader = TurnReader(request.input_ids, request.params, self.vocab_size)
        try:
            with self._figures.turn():
                aborted = await self._read(request, reader, flight)
        except HttpRefusal as error:
            if error.status in (400, 422):  # the request's fault; all others are the service's
                raise FieldErrors([FieldError("request", f"was refused by vLLM: {error.message}")]) from None
            raise
        finally:
            self._running -= flight.first is not None
        return self._result(request, reader, flight, aborted=aborted)

    def statistics(self) -> EngineStatistics:
        return self._figures.statistics(running=self._running)

    async def check_health(self, *, timeout_s: float = 5.0) -> str:
        """The version of its weights, which is always the same. Raises EngineUnavailable for a server that does not
        answer, or serves another model than before."""
        model, tokens = longest_context(await self._http.get("/v1/models", timeout_s=timeout_s))
        if (model, tokens) != (self._model, self._max_model_tokens):
            served = f"{model} with {tokens} tokens, not {self._model} with {self._max_model_tokens}"
            raise EngineUnavailable(f"{self._http.url}: serves {served} as before")
        return _WEIGHTS

    async def _read(self, request: GenerationRequest, reader: TurnReader, flight: _Flight) -> bool:
        """Reads the turn; whether its time was over before it ended."""
        body = completion_body(request, model=self.model_name)
        try:
            async with (
                asyncio.timeout(request.queue_timeout_s) as deadline,
                self._http.stream("/v1/completions", body, max_bytes=MAX_EVENT_BYTES, timeout_s=None) as stream,
            ):
                while not reader.done:
                    reader.add(await stream.next())
                    if flight.first is None and reader.ids:
                        flight.first = self._clock.now()
                        self._running += 1
                        limit = request.time_limit_s
                        deadline.reschedule(None if limit is None else asyncio.get_running_loop().time() + limit)
        except TimeoutError:
            if flight.first is not None:
                return reader.finish is None
            raise EngineUnavailable(f"vLLM sampled nothing within {request.queue_timeout_s:g} s") from None
        return False

    def _result(
        self, request: GenerationRequest, reader: TurnReader, flight: _Flight, *, aborted: bool
    ) -> GenerationResult:
        finish = FinishReason.ABORT if aborted else reader.finish
        assert finish is not None
        assert flight.first is not None
        now, ids = self._clock.now(), tuple(reader.ids)
        self._figures.count(
            finished=1,
            prompt_tokens=len(request.input_ids),
            cached_tokens=reader.cached_tokens,
            sampled_tokens=len(ids),
        )
        return GenerationResult(
            ids=ids,
            logprobs=tuple(reader.logprobs),
            finish=finish,
            versions=(VersionSpan(_WEIGHTS, 0, len(ids)),),
            queue_s=flight.first - flight.submitted,
            run_s=now - flight.first,
            cached_tokens=reader.cached_tokens,
        )
