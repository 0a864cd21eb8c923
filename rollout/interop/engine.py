"""Base of the engines behind another trainer's own client: deadlines, and the definition of a turn.

The client belongs to the trainer: leaving the engine closes nothing. Such clients wait while weights are updated, and
don't tell that from generating: `queue_timeout_s` of a request bounds both, and the engine ignores `time_limit_s`.
"""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from rollout.engines.base import (
    EngineStatistics,
    EngineUnavailable,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    VersionSpan,
    check_request,
)


@dataclass(frozen=True, slots=True)
class ClientTurn:
    """A client's answer to a request."""

    ids: Sequence[int]
    logprobs: Sequence[float] | None
    aborted: bool
    """True if the server gave the request up, as before an update of the weights."""
    version: str = "unknown"


class ClientEngine(abc.ABC):
    """A subclass asks its client and reads what that answers. `who` is the server's name in errors."""

    who: str

    def __init__(self, client: Any, *, model_name: str, vocab_size: int, max_model_tokens: int) -> None:
        self.client = client
        self.model_name = model_name
        self.vocab_size = vocab_size
        self.max_model_tokens = max_model_tokens

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def statistics(self) -> EngineStatistics:
        """Empty statistics: the trainer counts what its client does."""
        return EngineStatistics()

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Samples a turn. Raises FieldErrors for a bad request, EngineUnavailable for whatever the trainer's side fails
        with."""
        check_request(request, vocab_size=self.vocab_size, max_model_tokens=self.max_model_tokens)
        began = time.monotonic()
        try:
            async with asyncio.timeout(request.queue_timeout_s):
                turn = await self.ask(request)
        except TimeoutError:
            raise EngineUnavailable(f"{self.who} did not answer within {request.queue_timeout_s:g} s") from None
        except Exception as error:  # the boundary to the trainer and Ray, whose errors have no common base
            raise EngineUnavailable(f"{self.who} failed: {type(error).__name__}: {error}") from error
        return self._result(turn, request, time.monotonic() - began)

    @abc.abstractmethod
    async def ask(self, request: GenerationRequest) -> ClientTurn:
        """The client's answer. It may raise whatever the client raises."""

    def _result(self, turn: ClientTurn, request: GenerationRequest, took_s: float) -> GenerationResult:
        """Raises EngineUnavailable for what is no whole turn."""
        ids = tuple(turn.ids)
        if turn.aborted:
            raise EngineUnavailable(f"{self.who} aborted the request")
        if not ids:
            raise EngineUnavailable(f"{self.who} returned no ids")
        if turn.logprobs is None or len(turn.logprobs) != len(ids):
            got = "none" if turn.logprobs is None else str(len(turn.logprobs))
            raise EngineUnavailable(f"{self.who} returned {len(ids)} ids with {got} logprobs, must be one for each id")
        return GenerationResult(
            ids=ids,
            logprobs=tuple(float(logprob) for logprob in turn.logprobs),
            finish=FinishReason.STOP if ids[-1] in request.params.stop_token_ids else FinishReason.LENGTH,
            versions=(VersionSpan(turn.version, 0, len(ids)),),
            run_s=took_s,
        )


def sampling_fields(params: SamplingParams) -> dict[str, Any]:
    """The parameters that every trainer's client calls the same."""
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or -1,
        "stop_token_ids": list(params.stop_token_ids),
    }
