"""sglang's native `/generate`: the request's body, and what its stream of events says. Pure: bytes in, facts out.

Invariants: an answer has as many logprobs as ids, each beside the id it belongs to, and version spans that cover them;
anything else is an EngineUnavailable, because a wrong token is worse than none. Texts are neither asked for nor read.

Facts about the server (0.5.23) that this relies on: logprobs are those of log_softmax(logits / temperature) before
top-p and top-k (unless SGLANG_RETURN_ORIGINAL_LOGPROB is set, which `SglangServer` finds out); the id that stopped the
turn is among the ids; with `stream_interval` above the number of ids, a stream has two events, one with the first id
and one at the end.
"""

from __future__ import annotations

import math
from typing import Any

from rollout.engines.base import (
    EngineUnavailable,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    VersionSpan,
)
from rollout.engines.events import brief, error_text

_BYTES_PER_ID = 256
"""Most bytes per id of an answer: in `output_ids`, with its logprob, and as text, at most some tens of bytes."""
_BYTES_BESIDE = 1 << 20
"""Most bytes of everything else in an answer."""


def generate_body(request: GenerationRequest, rid: str) -> dict[str, Any]:
    """The JSON of POST /generate. `rid` names the request at the server."""
    params = request.params
    sampling: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or -1,
        "max_new_tokens": params.max_new_tokens,
        # sglang also stops at the model's own end-of-text ids, which is only right where something stops the turn.
        "ignore_eos": not params.stop_token_ids,
        "stop_token_ids": list(params.stop_token_ids),
        "skip_special_tokens": False,
        "stream_interval": params.max_new_tokens + 1,
    }
    if params.seed is not None:
        sampling["sampling_seed"] = params.seed
    return {
        "rid": rid,
        "input_ids": list(request.input_ids),
        "sampling_params": sampling,
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": True,
    }


def max_answer_bytes(params: SamplingParams) -> int:
    """No answer to a request with these parameters is longer."""
    return _BYTES_BESIDE + _BYTES_PER_ID * params.max_new_tokens


class AnswerReader:
    """`add` each event; it gives the answer, without times, when the last one came.

    incremental: the server sends only what is new in each event (`--incremental-streaming-output`).
    """

    def __init__(self, params: SamplingParams, *, vocab_size: int, incremental: bool = False) -> None:
        self._params = params
        self._vocab_size = vocab_size
        self._incremental = incremental
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self.queue_s: float | None = None
        """Seconds that the request waited at the server; None if the server does not say."""

    @property
    def started(self) -> bool:
        """Says whether an id was sampled."""
        return bool(self._ids)

    def add(self, event: Any) -> GenerationResult | None:
        """None while the request goes on. Raises EngineUnavailable for an error or nonsense."""
        try:
            if "error" in event:
                raise EngineUnavailable(f"sglang refused a turn: {error_text(event)}")
            return self._event(event)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            raise EngineUnavailable(f"sglang answered what can't be read ({error!r:.300}): {brief(event)}") from None

    def _event(self, event: dict[str, Any]) -> GenerationResult | None:
        meta = event["meta_info"]
        if not self._incremental:
            self._ids, self._logprobs = [], []
        if len(event["output_ids"]) > (wanted := self._params.max_new_tokens):
            raise EngineUnavailable(f"sglang answered {len(event['output_ids'])} ids, {wanted} were wanted")
        for token, (logprob, beside, _) in zip(
            event["output_ids"], meta.get("output_token_logprobs") or (), strict=True
        ):
            if token != beside or not isinstance(token, int) or not 0 <= token < self._vocab_size:
                raise EngineUnavailable(f"sglang answered id {brief(token)} with the logprob of id {brief(beside)}")
            if not isinstance(logprob, (int, float)) or not math.isfinite(logprob):
                raise EngineUnavailable(f"sglang answered id {token} with logprob {brief(logprob)}")
            self._ids.append(token)
            self._logprobs.append(float(logprob))
        if (told := meta.get("completion_tokens", len(self._ids))) != len(self._ids):
            raise EngineUnavailable(f"sglang answered {len(self._ids)} ids and counts {brief(told)}")
        if isinstance(meta.get("queue_time"), (int, float)):
            self.queue_s = max(0.0, float(meta["queue_time"]))
        reason = meta["finish_reason"]
        if reason is None:
            return None
        return GenerationResult(
            ids=tuple(self._ids),
            logprobs=tuple(self._logprobs),
            finish=self._finish(reason),
            versions=self._versions(meta),
            cached_tokens=int(meta.get("cached_tokens") or 0),
        )

    def _finish(self, reason: dict[str, Any]) -> FinishReason:
        kind, sampled, wanted = reason["type"], len(self._ids), self._params.max_new_tokens
        if kind == "abort" and reason.get("status_code") is None:
            return FinishReason.ABORT
        if kind == "stop" and isinstance(reason.get("matched"), int) and 1 <= sampled <= wanted:
            return FinishReason.STOP
        if kind == "length" and sampled == wanted:
            return FinishReason.LENGTH
        raise EngineUnavailable(f"sglang ended a turn of {wanted} ids after {sampled}: {brief(reason)}")

    def _versions(self, meta: dict[str, Any]) -> tuple[VersionSpan, ...]:
        if not self._ids:
            return ()
        told = meta.get("weight_versions")
        if told is None:  # a server that knows one version per answer only
            return (VersionSpan(str(meta["weight_version"]), 0, len(self._ids)),)
        spans = tuple(VersionSpan(str(span["version"]), int(span["start"]), int(span["end"])) for span in told)
        edges = [0, *(span.end for span in spans)]
        if [span.start for span in spans] != edges[:-1] or edges[-1] != len(self._ids):
            raise EngineUnavailable(f"sglang's weight versions don't cover {len(self._ids)} ids: {brief(told)}")
        return spans
