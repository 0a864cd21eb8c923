"""Texts at which a turn ends (OpenAI's `stop`), over engines that end turns at ids alone.

The turn is sampled in pieces, and its text is looked at after each. Invariants: what is kept is what the engine
sampled, up to and with the id that completes the text; nothing is encoded again; without a text the engine gets the
request as it is; a long text is not decoded on the event loop.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from fairbox.apart import read_apart
from rollout.engines.base import Engine, GenerationRequest, GenerationResult, derived_seed
from rollout.engines.turn import Turn

PIECE = 64
"""Ids of a piece: at most so many are sampled in vain, and a piece costs an engine with a prefix cache little."""
_READ_BYTES = 40
"""Bytes of text that are read for each id: some 5 of its own, in each step of the bisection."""


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
    turn = Turn(request)
    while turn.finish is None:
        begun = turn.sampled
        turn.add(await engine.generate(_piece(turn)))
        read = partial(_end, turn.ids, begun, stops, text_of)
        end = await read_apart(_READ_BYTES * turn.sampled, read)
        if end is not None:
            turn.end_at(end)
    return turn.result()


def _end(ids: tuple[int, ...], begun: int, stops: Sequence[str], text_of: Callable[[Sequence[int]], str]) -> int | None:
    """Number of ids, more than `begun`, by which the text has a stop; None if it has none."""

    def has_stop(end: int) -> bool:
        return find_stop(text_of(ids[:end]), stops) is not None

    if not has_stop(len(ids)):
        return None
    return begun + 1 + bisect_left(range(begun + 1, len(ids)), True, key=has_stop)


def _piece(turn: Turn) -> GenerationRequest:
    """The request for the next piece."""
    request = turn.next_request()
    params = request.params
    seed = derived_seed(params.seed, "id", turn.sampled)
    piece = replace(params, max_new_tokens=min(PIECE, params.max_new_tokens), seed=seed)
    request_id = uuid.uuid4().hex if turn.sampled else request.request_id
    return replace(request, request_id=request_id, params=piece)
