"""Finds the tokenizer of a dump and decodes with it, without loading torch or transformers where that can be avoided.

Invariant: nothing is downloaded and nothing is converted: a tokenizer is where the setting says, or where the row's
`model` names a folder, or in the cache of models.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from fairbox.errors import FairboxError
from rollout.engines.model_store import BUILT_IN, cache_dir, find_model
from rollout.tokens.tokenizer import HubTokenizer
from rollout.viewer.pieces import Decode

__all__ = ["DecoderError", "find_tokenizer", "load_decoder"]

_FILE = "tokenizer.json"


class DecoderError(FairboxError):
    """There is no tokenizer, or it can't be loaded; the text says what to set."""


def find_tokenizer(setting: str | None, recorded: str) -> Path:
    """The folder of the tokenizer: `setting` (a folder, its tokenizer.json, or `smollm2`), else that of the model that
    the row was sampled by. Raises DecoderError."""
    if setting == BUILT_IN:
        return find_model(BUILT_IN)
    if setting is not None:
        folder = Path(setting).expanduser()
        folder = folder.parent if folder.name == _FILE else folder
        if not folder.is_dir():
            raise DecoderError(f"tokenizer is {setting!r}, which is no folder with a tokenizer")
        return folder
    if recorded:
        named = Path(recorded).expanduser()
        if named.is_absolute() and named.is_dir():
            return named
        if named.name == recorded:
            for folder in sorted(cache_dir().glob("models/*/*")):
                if folder.name == recorded and (folder / _FILE).is_file():
                    return folder
    raise DecoderError(f"no tokenizer is known for model {recorded!r}; set tokenizer to its folder to see tokens")


def load_decoder(folder: Path) -> Decode:
    """Takes a moment, or seconds where only transformers can read the tokenizer. Raises DecoderError."""
    file = folder / _FILE
    if file.is_file() and importlib.util.find_spec("tokenizers") is not None:
        from tokenizers import Tokenizer  # an extra's

        try:
            fast = Tokenizer.from_file(str(file))
        except Exception as error:  # the boundary to a file of unknown origin, whose reader raises plain Exception
            raise DecoderError(f"{file}: is no tokenizer: {error}") from None

        def decode(ids: Sequence[int]) -> str:
            text: str = fast.decode(list(ids), skip_special_tokens=False)
            return text

        return decode
    try:
        return HubTokenizer(folder).decode
    except ImportError:
        raise DecoderError("tokens need the package tokenizers: pip install 'fairbox[viewer]'") from None
    except (OSError, ValueError) as error:
        raise DecoderError(f"{folder}: has no tokenizer: {str(error).splitlines()[0]}") from None
