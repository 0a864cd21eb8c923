"""The verified chat template of a tokenizer that another trainer has loaded.

The trainer may have given it another template than its model's folder has, so what counts is the object: it is saved
into a temporary folder and read from there, once for a process.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rollout.tokens.chat import ChatTemplate
from rollout.tokens.tokenizer import HubTokenizer

__all__ = ["chat_of", "pad_token_id"]

_CHATS: dict[int, tuple[Any, ChatTemplate]] = {}
"""By the id of the tokenizer, which is kept beside, so that no other gets that id. A process has one or two."""


def chat_of(tokenizer: Any) -> ChatTemplate:
    """`tokenizer` is one of transformers'. Raises ChatTemplateError where its template is not append-only."""
    if id(tokenizer) not in _CHATS:
        with tempfile.TemporaryDirectory(prefix="fairbox-tokenizer-") as folder:
            tokenizer.save_pretrained(folder)
            _CHATS[id(tokenizer)] = (tokenizer, ChatTemplate(HubTokenizer(Path(folder))))
    return _CHATS[id(tokenizer)][1]


def pad_token_id(tokenizer: Any) -> int:
    """The tokenizer's padding id; where it has none, the one that ends a turn."""
    pad = tokenizer.pad_token_id
    return int(chat_of(tokenizer).end_of_turn if pad is None else pad)
