"""Texts at which a turn ends (OpenAI's `stop`), over engines that end turns at ids alone.

The turn is sampled in pieces, and its text is looked at after each. Invariants: what is kept is what the engine
sampled, up to and with the id that completes the text; nothing is encoded again; without a text the engine gets the
request as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from rollout.engines.base import Engine, FinishReason, GenerationRequest, GenerationResult, VersionSpan

PIECE = 64
"""Ids of a piece: at most so many are sampled in vain, and a piece costs an engine with a prefix cache little."""
_SEED_STEP = 0x9E3779B97F4A7C15
"""The golden ratio of 64 bits: a piece must not meet the draws of the one before again."""


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Start of the stop text that is complete first, of the longest if there are several; None if there is none."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


async def generate_until(
    engine: Engine, request: GenerationRequest, stops: Sequence[str], text_of: Callable[[Sequence[int]], str]
) -> GenerationResult:
    """A turn as `engine.generate`, which also ends, with FinishReason.STOP, at the id by which its text has one of
    `stops`. Raises what the engine raises."""
    if not stops:
        return await engine.generate(request)
    turn = await engine.generate(_piece(request, ()))
    seen, finish = 0, turn.finish
    while find_stop(text_of(turn.ids), stops) is None:
        if finish is not FinishReason.LENGTH or len(turn.ids) >= request.params.max_new_tokens:
            return turn
        more = await engine.generate(_piece(request, turn.ids))
        seen, finish, turn = len(turn.ids), more.finish, _joined(turn, more)
    ends = range(seen + 1, len(turn.ids) + 1)
    return _cut(turn, next(end for end in ends if find_stop(text_of(turn.ids[:end]), stops) is not None))


def _piece(request: GenerationRequest, ids: tuple[int, ...]) -> GenerationRequest:
    """The request for the piece after the ids that are sampled already."""
    params = request.params
    seed = params.seed if params.seed is None else (params.seed + len(ids) * _SEED_STEP) % 2**63
    most = min(PIECE, params.max_new_tokens - len(ids))
    return replace(
        request,
        request_id=uuid.uuid4().hex if ids else request.request_id,
        input_ids=request.input_ids + ids,
        params=replace(params, max_new_tokens=most, seed=seed),
    )


def _joined(turn: GenerationResult, more: GenerationResult) -> GenerationResult:
    start = len(turn.ids)
    spans = list(turn.versions)
    for each in more.versions:
        span = VersionSpan(each.version, each.start + start, each.end + start)
        if spans and spans[-1].version == span.version:
            span = VersionSpan(span.version, spans.pop().start, span.end)
        spans.append(span)
    return replace(
        turn,
        ids=turn.ids + more.ids,
        logprobs=turn.logprobs + more.logprobs,
        finish=more.finish,
        versions=tuple(spans),
        queue_s=turn.queue_s + more.queue_s,
        run_s=turn.run_s + more.run_s,
    )


def _cut(turn: GenerationResult, end: int) -> GenerationResult:
    """The turn up to `end`, as one that ended there."""
    spans = tuple(
        VersionSpan(each.version, each.start, min(each.end, end)) for each in turn.versions if each.start < end
    )
    return replace(turn, ids=turn.ids[:end], logprobs=turn.logprobs[:end], finish=FinishReason.STOP, versions=spans)
