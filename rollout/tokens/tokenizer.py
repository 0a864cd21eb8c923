"""A model's tokenizer and chat template, as its own folder defines them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fairbox.errors import FairboxError

__all__ = ["HubTokenizer", "Message", "Tokenizer"]

Message = Mapping[str, str]
"""`role` (system, user, assistant or tool) and `content`."""


class Tokenizer(Protocol):
    """What the token layer needs: text to ids and back, and the model's own rendering of a conversation."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text -> id of the tokens that structure a conversation."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text. Special tokens in it are recognised; none is added."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of ids. Ids that are no whole character become U+FFFD."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, generate: bool) -> str:
        """The conversation as text; with `generate`, up to where the assistant's next turn begins."""
        ...


class HubTokenizer:
    """The tokenizer of a model folder in the layout of the Hugging Face hub."""

    def __init__(self, model_dir: Path) -> None:
        from transformers import AutoTokenizer  # costs seconds, so only where a model is used

        self._tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
        if not self._tokenizer.chat_template:
            raise FairboxError(f"{model_dir}: has no chat template, so it can't hold a conversation")
        added = self._tokenizer.added_tokens_decoder.items()
        self._special = {token.content: index for index, token in added if token.special}

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return self._special

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        return text

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, generate: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            add_generation_prompt=generate,
            tokenize=False,
        )
        return text
