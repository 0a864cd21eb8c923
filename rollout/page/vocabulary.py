"""Bytes of the token ids that a run uses, so that a page decodes tokens without a tokenizer.

Invariant: the bytes of the ids of a text, joined, are the text that the tokenizer decodes, special tokens included,
for byte-level tokenizers and for those that fall back to bytes; of others each id has the tokenizer's name of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fairbox.errors import FairboxError
from rollout.engines.model_store import BUILT_IN, find_model
from rollout.viewer.rows.pieces import DecoderError, find_tokenizer, load_tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def vocabulary_of(names: Iterable[str], ids: Iterable[int]) -> dict[int, str]:
    """Id -> its bytes, each as the character of that number, by the first tokenizer of `names` that is there. Raises
    FairboxError if none is; the text is about the first."""
    first: FairboxError | None = None
    for name in names:
        try:
            folder = find_model(BUILT_IN) if name == BUILT_IN else find_tokenizer(name)
            return dict(_entries(folder, ids))
        except FairboxError as error:
            first = first or error
        except Exception as error:  # the boundary to names and files of unknown origin
            first = first or DecoderError(f"model {name[:80]!r} has no tokenizer that can be read: {error}")
    raise first or DecoderError("no tokenizer is known; set tokenizer to its folder to see tokens")


def _entries(folder: Path, ids: Iterable[int]) -> Iterator[tuple[int, str]]:
    tokenizer = load_tokenizer(folder)
    added = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()}
    by_bytes = "ByteLevel" in repr(tokenizer.decoder)
    characters = _byte_characters()
    for number in ids:
        if not isinstance(number, int) or not 0 <= number < 1 << 32:  # what a dump of unknown origin may have
            continue
        token = added.get(number, tokenizer.id_to_token(number))
        if token is None:
            continue
        if number in added:
            data = token.encode("utf-8", "replace")
        elif by_bytes:
            data = b"".join(characters.get(each) or each.encode("utf-8", "replace") for each in token)
        elif match := _BYTE.fullmatch(token):
            data = bytes([int(match[1], 16)])
        else:
            data = token.replace("\u2581", " ").encode("utf-8", "replace")
        yield number, data.decode("latin-1")


def _byte_characters() -> dict[str, bytes]:
    """The characters in which byte-level tokenizers (GPT-2's and its heirs) write bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): bytes([byte]) for byte in plain} | {
        chr(256 + position): bytes([byte]) for position, byte in enumerate(others)
    }
