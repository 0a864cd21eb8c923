"""vLLM's completions endpoint with ids in and ids out: what is sent, and what the events of its stream say. Pure.

`POST /v1/completions` takes a prompt of ids; with `return_token_ids` (vLLM 0.10.2 and newer) each event of the stream
has the ids that were sampled since the last one, beside their logprobs. Everything that a server's generation config
could set otherwise is sent. Which distribution the logprobs are of is a setting of the server (`--logprobs-mode`), so
requests for which it would not be the one that engines promise are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fairbox.errors import FieldError, FieldErrors
from rollout.engines.base import EngineUnavailable, FinishReason, GenerationRequest, SamplingParams
from rollout.engines.events import brief, error_text

MAX_EVENT_BYTES = 16 << 20
"""Largest event of a stream. The first one repeats the prompt's ids, at most eight characters each."""
_LOWEST_TEMPERATURE = 0.01
"""vLLM raises lower ones to this, so the logprobs would be of another temperature."""
_LOWEST_LOGPROB = -9999.0
"""Value that vLLM writes for minus infinity, which no sampled id has."""


class LogprobsMode(StrEnum):
    """Values of the server's `--logprobs-mode`."""

    RAW = "raw_logprobs"
    """vLLM's default: of the model's logits, before temperature. Exact for temperature 1 and 0."""
    PROCESSED = "processed_logprobs"
    """After temperature, top-k and top-p. Exact where neither of these cuts anything. The one to use for training."""


def check_exact(params: SamplingParams, mode: LogprobsMode) -> None:
    """Raises FieldErrors for sampling whose logprobs would not be those of softmax(logits / temperature)."""
    errors = []
    if mode is LogprobsMode.RAW and params.temperature not in (0, 1):
        problem = "must be 0 or 1, because the server's logprobs are of the unscaled distribution: "
        problem += "start vLLM with --logprobs-mode processed_logprobs"
        errors.append(FieldError("params.temperature", f"is {params.temperature}, {problem}"))
    if 0 < params.temperature < _LOWEST_TEMPERATURE:
        problem = f"must be 0 or at least {_LOWEST_TEMPERATURE}, to which vLLM raises lower ones"
        errors.append(FieldError("params.temperature", f"is {params.temperature}, {problem}"))
    cut = "must be off: with processed_logprobs, vLLM's logprobs are of what top-p and top-k leave"
    if mode is LogprobsMode.PROCESSED and params.temperature > 0:
        if params.top_p < 1:
            errors.append(FieldError("params.top_p", f"is {params.top_p}, {cut}"))
        if params.top_k > 0:
            errors.append(FieldError("params.top_k", f"is {params.top_k}, {cut}"))
    if errors:
        raise FieldErrors(errors)


def completion_body(request: GenerationRequest, *, model: str) -> dict[str, Any]:
    """The body of `POST /v1/completions`."""
    params = request.params
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(request.input_ids),
        "request_id": request.request_id,
        "max_tokens": params.max_new_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": True,  # turns end at the ids that the request names, and at no others
        "logprobs": 0,  # the sampled id's alone
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        "add_special_tokens": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if params.seed is not None:
        body["seed"] = params.seed
    return body


def longest_context(body: Any) -> tuple[str, int]:
    """Name and longest context of the only model there is, out of `GET /v1/models`. Raises EngineUnavailable."""
    try:
        cards = {card["id"]: card.get("max_model_len") for card in body["data"]}
    except (TypeError, KeyError, AttributeError):
        raise EngineUnavailable("vLLM's list of models can't be read") from None
    if len(cards) != 1:
        raise EngineUnavailable(f"vLLM serves {', '.join(sorted(cards)) or 'no model'}, not one alone")
    ((model, longest),) = cards.items()
    if longest is None:
        raise EngineUnavailable("vLLM does not say its longest context")
    return model, longest


@dataclass(slots=True)
class TurnReader:
    """Takes the events of a stream and keeps the turn. Raises EngineUnavailable for what can't be a turn."""

    input_ids: Sequence[int]
    params: SamplingParams
    vocab_size: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None
    cached_tokens: int = 0
    done: bool = False
    """The stream has said that it is complete."""

    def add(self, event: Any) -> None:
        """The next event of the stream; None at its end."""
        if event is None:
            if self.finish is None:
                raise EngineUnavailable("vLLM ended the stream before the turn was complete")
            self.done = True
            return
        try:
            self._take_event(event)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
            raise EngineUnavailable(f"vLLM sent an event that can't be read: {error!r:.300}") from None

    def _take_event(self, event: dict[str, Any]) -> None:
        if event.get("error"):
            raise EngineUnavailable(f"vLLM failed: {error_text(event)}")
        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
        self.cached_tokens = details.get("cached_tokens") or self.cached_tokens
        for choice in event.get("choices") or ():
            self._take_choice(choice)

    def _take_choice(self, choice: dict[str, Any]) -> None:
        echoed = choice.get("prompt_token_ids")
        if echoed is not None and tuple(echoed) != tuple(self.input_ids):
            raise EngineUnavailable("vLLM worked on other ids than it was given")
        ids = choice.get("token_ids")
        if ids is None:
            raise EngineUnavailable("vLLM returns no token ids: return_token_ids needs vLLM 0.10.2 or newer")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
        if len(self.ids) + len(ids) > self.params.max_new_tokens:
            raise EngineUnavailable(f"vLLM sampled more than {self.params.max_new_tokens} ids")
        if len(logprobs) != len(ids):
            raise EngineUnavailable(f"vLLM sent {len(ids)} ids with {len(logprobs)} logprobs")
        if not all(isinstance(each, int) and 0 <= each < self.vocab_size for each in ids):
            raise EngineUnavailable(f"vLLM sent ids that its model does not have: {brief(ids)}")
        if any(each is None or each <= _LOWEST_LOGPROB or not math.isfinite(each) for each in logprobs):
            raise EngineUnavailable("vLLM sent an id without its logprob")
        self.ids += ids
        self.logprobs += map(float, logprobs)
        reason = choice.get("finish_reason")
        if reason is not None:
            self.finish = self._finish(reason)

    def _finish(self, reason: str) -> FinishReason:
        if reason == "stop" and self.ids and self.ids[-1] in self.params.stop_token_ids:
            return FinishReason.STOP
        if reason == "length" and len(self.ids) == self.params.max_new_tokens:
            return FinishReason.LENGTH
        raise EngineUnavailable(f"vLLM ended the turn for a reason that was not asked for: {brief(reason)}")
