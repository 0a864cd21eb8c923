"""The text of each token: what a trajectory looks like where it is trained on. Pure but for the decoder it is given.

Invariant: the pieces' texts, joined, are the decoded whole. A token that is no whole character has an empty text, and
the one that completes the character has all of it. Without a decoder the pieces are the segments' texts, as far as the
row has them, with the mean logprob of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
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
    position: int = 0
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


def decoded_pieces(record: Mapping[str, Any], decode: Decode) -> list[Piece]:
    """One piece for each token of prompt and response. Needs `token_lists(record) == ""`."""
    tokens = _tokens(record)
    texts = _texts([token.id or 0 for token in tokens], decode)
    return [replace(token, text=text) for token, text in zip(tokens, texts, strict=True)]


def segment_pieces(record: Mapping[str, Any]) -> list[Piece]:
    """Without a tokenizer: a piece for each segment, with the text that the row has of it."""
    texts = _segment_texts(record)
    if token_lists(record):
        return [Piece(next(texts[kind], ""), kind, tokens=0) for kind in ("prompt", "sampled")]
    pieces = []
    for kind, group in groupby(_tokens(record), lambda token: token.kind):
        tokens = list(group)
        logprobs = [token.logprob for token in tokens if token.logprob is not None]
        mean = math.fsum(logprobs) / len(logprobs) if logprobs else None
        text = next(texts[kind], "") or f"({len(tokens)} tokens)"
        pieces.append(replace(tokens[0], text=text, tokens=len(tokens), id=None, logprob=mean))
    return pieces


def _tokens(record: Mapping[str, Any]) -> list[Piece]:
    """Ids with what is known of each. The mask decides what was sampled; segments only name the weights."""
    versions: list[str] = []
    for segment in _objects(record.get("segments")):
        if isinstance(segment.get("length"), int):
            versions += [str(segment.get("weight_version") or "")] * max(0, min(segment["length"], 1 << 20))
    tokens = [Piece("", "prompt", id=token_id) for token_id in record["prompt_ids"]]
    for token_id, bit, logprob in zip(record["response_ids"], record["response_mask"], record["logprobs"], strict=True):
        known = float(logprob) if bit and isinstance(logprob, int | float) else None
        tokens.append(Piece("", "sampled" if bit else "tool", id=token_id, logprob=known))
    versions += [""] * len(tokens)
    return [
        replace(token, position=position, weight_version=versions[position]) for position, token in enumerate(tokens)
    ]


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


def _segment_texts(record: Mapping[str, Any]) -> dict[str, Iterator[str]]:
    """Texts of the segments of each kind, in order: of the messages that followed the prompt, or of the whole."""
    messages, turns = _objects(record.get("messages")), record.get("turns")
    said = [position for position, message in enumerate(messages) if message.get("role") == "assistant"]
    texts = {"prompt": [str(record.get("input") or "")], "sampled": [str(record.get("output") or "")], "tool": []}
    if isinstance(turns, int) and 0 < turns <= len(said):
        texts["sampled"] = []
        for sampled, group in groupby(messages[said[-turns] :], lambda message: message.get("role") == "assistant"):
            kind = "sampled" if sampled else "tool"
            texts[kind].append("\n".join(str(message.get("content") or "") for message in group))
    return {kind: iter(each) for kind, each in texts.items()}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
