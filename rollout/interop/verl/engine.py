"""verl's inference servers as an engine of fairbox's agent loop: ids in; ids, logprobs and weight versions out.

Everything goes through verl's own client (`LLMServerClient.generate`), which balances load and keeps a trajectory on
one server. Weight versions are verl's global steps, as text; `LOW..HIGH` where a turn was sampled across an update.

Logprobs are what verl's server returns: sglang's are of the distribution after temperature; vLLM's are what
`rollout.logprobs_mode` says.
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

__all__ = ["VerlEngine", "global_steps"]

_ABORTED = ("aborted", "abort")
"""verl's words for a request that the server gave up, as before an update of the weights."""


class VerlEngine:
    """`client` is the `server_manager` that verl gives an agent loop. It belongs to verl; leaving this closes nothing.

    verl's servers wait while weights are updated, and the client does not tell that from generating: `time_limit_s` of
    a request is not looked at, and `queue_timeout_s` bounds waiting and generating together.
    """

    def __init__(self, client: Any, *, model_name: str, vocab_size: int, max_model_tokens: int) -> None:
        self._client = client
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
        """One turn. Raises FieldErrors for a bad request and EngineUnavailable for whatever verl's side fails with."""
        check_request(request, vocab_size=self.vocab_size, max_model_tokens=self.max_model_tokens)
        self._running += 1
        began = time.monotonic()
        try:
            output = await self._ask(request)
            result = _result(output, request, time.monotonic() - began)
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
            "repetition_penalty": 1.0,
            "logprobs": True,
            "max_tokens": params.max_new_tokens,
            "stop_token_ids": list(params.stop_token_ids),
        }
        try:
            async with asyncio.timeout(request.queue_timeout_s):
                # The trajectory's id: verl keeps requests of one id on one server, and makes ids of its own for it.
                return await self._client.generate(
                    request_id=request.trajectory_id, prompt_ids=list(request.input_ids), sampling_params=sampling
                )
        except TimeoutError:
            raise EngineUnavailable(f"verl's server did not answer within {request.queue_timeout_s:g} s") from None
        except Exception as error:  # the boundary to verl and Ray, whose errors have no common base
            raise EngineUnavailable(f"verl's server failed: {type(error).__name__}: {error}") from error


def _result(output: Any, request: GenerationRequest, took_s: float) -> GenerationResult:
    """verl's `TokenOutput` as a result. Raises EngineUnavailable where it is none."""
    ids = tuple(output.token_ids)
    if output.stop_reason in _ABORTED:
        raise EngineUnavailable("verl's server aborted the request")
    if not ids:
        raise EngineUnavailable("verl's server returned no ids")
    if output.log_probs is None or len(output.log_probs) != len(ids):
        got = "none" if output.log_probs is None else str(len(output.log_probs))
        raise EngineUnavailable(f"verl's server returned {len(ids)} ids with {got} logprobs, must be one for each id")
    return GenerationResult(
        ids=ids,
        logprobs=tuple(float(logprob) for logprob in output.log_probs),
        finish=FinishReason.STOP if ids[-1] in request.params.stop_token_ids else FinishReason.LENGTH,
        versions=(VersionSpan(_version(output.extra_fields), 0, len(ids)),),
        run_s=took_s,
    )


def _version(fields: dict[str, Any]) -> str:
    low, high = fields.get("min_global_steps"), fields.get("max_global_steps")
    if high is None:
        return "unknown"
    return str(high) if low in (None, high) else f"{low}..{high}"


def global_steps(version: str) -> tuple[int, ...]:
    """The steps that a weight version of this engine names: one, or the first and the last; none for other versions."""
    parts = version.split("..")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()
