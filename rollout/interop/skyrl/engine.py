"""SkyRL's inference engines as an engine of fairbox's agent loop: ids in; ids and logprobs out.

Everything goes through SkyRL's own client, one prompt at a time, which is what lets it go on over an update of the
weights. It does not say which weights sampled what, so the weight version is always `unknown`.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Self

from rollout.engines.base import (
    EngineStatistics,
    EngineUnavailable,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    VersionSpan,
    check_request,
)

__all__ = ["SkyRLEngine"]


class SkyRLEngine:
    """`client` is SkyRL's `InferenceEngineClient`. It belongs to SkyRL; leaving this closes nothing.

    `length_key` is what the backend calls the length of a turn: `max_tokens` of vLLM, `max_new_tokens` of sglang.
    SkyRL's client waits while weights are updated, so `queue_timeout_s` of a request bounds waiting and generating
    together, and `time_limit_s` is not looked at. `options` are passed to the client's `generate`.
    """

    def __init__(
        self,
        client: Any,
        *,
        model_name: str,
        vocab_size: int,
        max_model_tokens: int,
        length_key: str = "max_tokens",
        options: dict[str, Any] | None = None,
    ) -> None:
        self._client = client
        self._length_key = length_key
        self._options = options or {}
        self.model_name = model_name
        self.vocab_size = vocab_size
        self.max_model_tokens = max_model_tokens
        self._running = self._finished = self._aborted = self._sampled = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            running=self._running, finished=self._finished, aborted=self._aborted, sampled_tokens=self._sampled
        )

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """One turn. Raises FieldErrors for a bad request, EngineUnavailable for whatever SkyRL's side fails with."""
        check_request(request, vocab_size=self.vocab_size, max_model_tokens=self.max_model_tokens)
        self._running += 1
        began = time.monotonic()
        try:
            result = _result(await self._ask(request), request, time.monotonic() - began)
        except BaseException:
            self._aborted += 1
            raise
        finally:
            self._running -= 1
        self._finished += 1
        self._sampled += len(result.ids)
        return result

    async def _ask(self, request: GenerationRequest) -> Any:
        params = request.params
        sampling = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            self._length_key: params.max_new_tokens,
            "stop_token_ids": list(params.stop_token_ids),
        }
        if self._length_key == "max_tokens":
            sampling["logprobs"] = 0  # vLLM: the sampled id's own; sglang's engine in SkyRL always returns them
        question = {
            "prompts": None,
            "prompt_token_ids": [list(request.input_ids)],
            "session_ids": [request.trajectory_id],
            "sampling_params": sampling,
        }
        try:
            async with asyncio.timeout(request.queue_timeout_s):
                return await self._client.generate(question, **self._options)
        except TimeoutError:
            raise EngineUnavailable(f"SkyRL's engine did not answer within {request.queue_timeout_s:g} s") from None
        except Exception as error:  # the boundary to SkyRL and Ray, whose errors have no common base
            raise EngineUnavailable(f"SkyRL's engine failed: {type(error).__name__}: {error}") from error


def _result(output: Any, request: GenerationRequest, took_s: float) -> GenerationResult:
    """SkyRL's `InferenceEngineOutput` of one prompt. Raises EngineUnavailable where it is none."""
    ids = tuple(output["response_ids"][0])
    if not ids or output["stop_reasons"][0] == "abort":
        raise EngineUnavailable("SkyRL's engine aborted the request" if ids else "SkyRL's engine returned no ids")
    logprobs = (output.get("response_logprobs") or [None])[0]
    if logprobs is None or len(logprobs) != len(ids):
        got = "none" if logprobs is None else str(len(logprobs))
        raise EngineUnavailable(f"SkyRL's engine returned {len(ids)} ids with {got} logprobs, must be one for each id")
    return GenerationResult(
        ids=ids,
        logprobs=tuple(float(logprob) for logprob in logprobs),
        finish=FinishReason.STOP if ids[-1] in request.params.stop_token_ids else FinishReason.LENGTH,
        versions=(VersionSpan("unknown", 0, len(ids)),),
        run_s=took_s,
    )
