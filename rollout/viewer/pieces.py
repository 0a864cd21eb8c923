"""The text of each token: what a trajectory looks like where it is trained on. Pure but for the decoder it is given.

Invariant: the pieces' texts, joined, are the decoded whole. A token that is no whole character has an empty text, and
the one that completes the character has all of it. Without a decoder the pieces are the segments' texts, as far as the
row has them, with the mean logprob of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["HEATS", "Decode", "Piece", "decoded_pieces", "heat", "segment_pieces", "token_lists"]

Decode = Callable[[Sequence[int]], str]
"""Text of ids, special tokens included. Ids that are no whole character become U+FFFD."""

_UNFINISHED = "\ufffd"
_HEAT = (0.9, 0.5, 0.2, 0.05)
"""Probabilities at which the colour changes, from likely to unlikely."""
HEATS = len(_HEAT) + 1


@dataclass(frozen=True, slots=True)
class Piece:
    """A token, or without a tokenizer a segment."""

    text: str
    kind: str
    """`prompt`, `sampled` or `tool`."""
    position: int
    """Of its first token, from 0 at the prompt's first."""
    tokens: int = 1
    id: int | None = None
    logprob: float | None = None
    """None where nothing was sampled; a segment's is the mean of its tokens'."""
    weight_version: str = ""

    @property
    def sampled(self) -> bool:
        """Whether it is trained on: its mask is 1."""
        return self.kind == "sampled"


@dataclass(frozen=True, slots=True)
class _Token:
    id: int
    kind: str
    logprob: float | None
    version: str


def heat(logprob: float | None) -> int | None:
    """0 (likely) to 4 (unlikely), by probability; None without a logprob."""
    if logprob is None or math.isnan(logprob):
        return None
    probability = math.exp(min(0.0, logprob))
    return sum(probability < bound for bound in _HEAT)


def token_lists(record: Mapping[str, Any]) -> str:
    """Why the row's tokens can't be shown; empty when they can."""
    ids = record.get("response_ids")
    if not isinstance(ids, list) or not isinstance(record.get("prompt_ids"), list):
        return "this row has no token ids"
    for key in ("response_mask", "logprobs"):
        if not isinstance(record.get(key), list) or len(record[key]) != len(ids):
            return f"{key} has not the length of response_ids"
    if not all(isinstance(each, int) for each in (*record["prompt_ids"], *ids)):
        return "its token ids are not numbers"
    return ""


def decoded_pieces(record: Mapping[str, Any], decode: Decode, *, prompt: bool = True) -> list[Piece]:
    """One piece for each token of the response, with `prompt` also of the prompt. Needs `token_lists(record) == ""`."""
    tokens = list(_tokens(record))
    first = 0 if prompt else len(record["prompt_ids"])
    texts = _texts([token.id for token in tokens[first:]], decode)
    return [
        Piece(text, token.kind, position, 1, token.id, token.logprob, token.version)
        for position, (token, text) in enumerate(zip(tokens[first:], texts, strict=True), first)
    ]


def segment_pieces(record: Mapping[str, Any], *, prompt: bool = True) -> list[Piece]:
    """Without a tokenizer: a piece for each segment, with the text that the row has of it."""
    pieces: list[Piece] = []
    texts = _segment_texts(record)
    begin = 0
    tokens = list(_tokens(record)) if not token_lists(record) else []
    for kind, length in _segments(record, tokens):
        of_it = tokens[begin : begin + length]
        logprobs = [token.logprob for token in of_it if token.logprob is not None]
        mean = math.fsum(logprobs) / len(logprobs) if logprobs else None
        text = next(texts[kind], "") or f"({length} tokens)"
        if prompt or kind != "prompt":
            version = of_it[0].version if of_it else ""
            pieces.append(Piece(text, kind, begin, length, None, mean, version))
        begin += length
    return pieces


def _tokens(record: Mapping[str, Any]) -> Iterator[_Token]:
    """Ids with what is known of each. The mask decides what was sampled; segments only name the weights."""
    versions: list[str] = []
    for segment in _objects(record.get("segments")):
        if isinstance(segment.get("length"), int):
            versions += [str(segment.get("weight_version") or "")] * max(0, min(segment["length"], 1 << 20))
    prompt = record["prompt_ids"]
    for position, token_id in enumerate(prompt):
        yield _Token(token_id, "prompt", None, versions[position] if position < len(versions) else "")
    rest = zip(record["response_ids"], record["response_mask"], record["logprobs"], strict=True)
    for position, (token_id, bit, logprob) in enumerate(rest, len(prompt)):
        known = float(logprob) if bit and isinstance(logprob, int | float) else None
        version = versions[position] if position < len(versions) else ""
        yield _Token(token_id, "sampled" if bit else "tool", known, version)


def _texts(ids: Sequence[int], decode: Decode) -> list[str]:
    """The text that each id adds. Decoded in a window that begins two texts before it, because a tokenizer's text of an
    id may depend on its neighbours (a leading space, a character of several tokens)."""
    texts: list[str] = []
    begin = read = 0
    before = ""
    for end in range(1, len(ids) + 1):
        window = decode(ids[begin:end])
        finished = not window.endswith(_UNFINISHED) or end == len(ids) or end - read >= 8
        if not finished or len(window) < len(before):
            texts.append("")
            continue
        texts.append(window[len(before) :])
        begin, read = read, end
        before = decode(ids[begin:read])
    return texts


def _segments(record: Mapping[str, Any], tokens: Sequence[_Token]) -> Iterator[tuple[str, int]]:
    """(kind, length), of neighbours of one kind together; without tokens, by the row's messages."""
    if not tokens:
        yield "prompt", 0
        yield "sampled", 0
        return
    begin = 0
    for position in range(1, len(tokens) + 1):
        if position == len(tokens) or tokens[position].kind != tokens[begin].kind:
            yield tokens[begin].kind, position - begin
            begin = position


def _segment_texts(record: Mapping[str, Any]) -> dict[str, Iterator[str]]:
    messages = _objects(record.get("messages"))
    prompt, output = str(record.get("input") or ""), str(record.get("output") or "")
    turns = record.get("turns")
    said = [position for position, message in enumerate(messages) if message.get("role") == "assistant"]
    if not messages or not isinstance(turns, int) or not 0 < turns <= len(said):
        return {"prompt": iter([prompt]), "sampled": iter([output]), "tool": iter(())}
    spoken: list[str] = []
    answers: list[str] = []
    pending: list[str] = []
    for message in messages[said[-turns] :]:
        text = str(message.get("content") or "")
        if message.get("role") == "assistant":
            if spoken:
                answers.append("\n".join(pending))
            spoken.append(text)
            pending = []
        else:
            pending.append(text)
    return {"prompt": iter([prompt]), "sampled": iter(spoken), "tool": iter([*answers, "\n".join(pending)])}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
