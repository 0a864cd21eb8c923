"""The text of each token of a row: what a trajectory looks like to a trainer.

Invariants: the pieces' texts, joined, are the decoded whole; a token that is no whole character has an empty text, and
the one that completes the character has all of it. Nothing is downloaded: a tokenizer is in the folder of the setting,
in the folder that the row's `model` names, or in the cache of models. torch and transformers are not loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbox.errors import FairboxError
from fairbox.extras import MissingExtra, require
from rollout.engines.model_store import BUILT_IN, cache_dir, find_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Decode = Callable[[Sequence[int]], str]
"""Text of ids, special tokens included. Ids that are no whole character become U+FFFD."""

_FILE = "tokenizer.json"
_UNFINISHED = "\ufffd"
_HEAT = (0.9, 0.5, 0.2, 0.05)
"""Probabilities at which the colour changes, from likely to unlikely."""


class DecoderError(FairboxError):
    """A row's tokens can't be shown; the text says why, or what to set."""


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """A token."""

    text: str
    kind: str
    """`prompt`, `tool`, or `sampled`, which alone is trained on."""
    id: int = 0
    logprob: float | None = None
    """None for one that was not sampled."""
    weight_version: str = ""


def heat(logprob: float | None) -> int | None:
    """0 (likely) to 4 (unlikely), by probability; None without a logprob."""
    if logprob is None or math.isnan(logprob):
        return None
    probability = math.exp(min(0.0, logprob))
    return sum(probability < bound for bound in _HEAT)


def row_pieces(record: Mapping[str, Any], tokenizer: str | None) -> list[TokenPiece]:
    """The row's tokens on their text, by the tokenizer of the setting, else by that of the row's model. Raises
    DecoderError, and FairboxError for a built-in model that is not installed."""
    if problem := token_lists(record):
        raise DecoderError(problem)
    try:
        name = tokenizer or str(record.get("model") or "")
        folder = find_model(BUILT_IN) if tokenizer == BUILT_IN else find_tokenizer(name)
        return decoded_pieces(record, load_decoder(folder))
    except FairboxError:
        raise
    except Exception as error:  # the boundary to a tokenizer of unknown origin: ids that it has not
        raise DecoderError(f"the tokenizer can't decode this row: {type(error).__name__}: {error}") from None


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


def decoded_pieces(record: Mapping[str, Any], decode: Decode) -> list[TokenPiece]:
    """One piece for each token of prompt and response. Needs `token_lists(record) == ""`. The mask decides what was
    sampled; segments only name the weights."""
    prompt = [("prompt", token_id, None) for token_id in record["prompt_ids"]]
    response = [
        ("sampled" if bit else "tool", token_id, float(logprob) if bit and isinstance(logprob, int | float) else None)
        for token_id, bit, logprob in zip(
            record["response_ids"], record["response_mask"], record["logprobs"], strict=True
        )
    ]
    versions: list[str] = []
    segments = record.get("segments")
    for segment in segments if isinstance(segments, list) else ():
        if isinstance(segment, dict) and isinstance(segment.get("length"), int):
            versions += [str(segment.get("weight_version") or "")] * max(0, min(segment["length"], 1 << 20))
    tokens = prompt + response
    texts = _texts([token_id for _, token_id, _ in tokens], decode)
    versions += [""] * len(tokens)
    return [TokenPiece(text, *token, version) for text, token, version in zip(texts, tokens, versions, strict=False)]


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


def find_tokenizer(name: str) -> Path:
    """The folder of the tokenizer of `name`: a folder, its tokenizer.json, or a model in the cache. Raises
    DecoderError."""
    folder = Path(name).expanduser()
    folder = folder.parent if folder.name == _FILE else folder
    if name and folder.is_dir():
        return folder
    models = cache_dir() / "models"
    for cached in sorted([*models.glob("*/*"), *models.glob("hub/*/*")]):
        if cached.name == name and (cached / _FILE).is_file():
            return cached
    raise DecoderError(f"no tokenizer is known for model {name!r}; set tokenizer to its folder to see tokens")


@lru_cache(maxsize=4)
def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder. Raises DecoderError."""
    file = folder / _FILE
    try:
        require("showing tokens", "viewer", "tokenizers")
    except MissingExtra as error:
        raise DecoderError(str(error)) from None
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the boundary to a file of unknown origin, whose reader raises plain Exception
        raise DecoderError(f"{file}: is no tokenizer: {error}") from None


def load_decoder(folder: Path) -> Decode:
    """The decoder of a folder's tokenizer. Raises DecoderError."""
    tokenizer = load_tokenizer(folder)
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
