"""A model's tokenizer and chat template, as its own folder defines them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairbox.errors import FairboxError

Message = Mapping[str, str]
"""`role` (system, user, assistant or tool) and `content`; of a tool's answer also `name` and `tool_call_id`, where the
chat template or the model's calls have them."""


class ChatTemplateError(FairboxError):
    """The template can't be used for exact multi-turn tokens; the text says what it did."""


class HubTokenizer:
    """Text to ids and back, and the model's own rendering of a conversation, by the tokenizer of a model folder in the
    layout of the Hugging Face hub.

    `template` replaces the folder's chat template; `options` are passed to it, as `{"enable_thinking": False}`.
    """

    def __init__(
        self, model_dir: Path, *, template: str | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        from transformers import AutoTokenizer  # costs seconds, so only where a model is used

        self._tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
        self._template = template or self._tokenizer.chat_template
        self._options = dict(options or {})
        if not self._template:
            raise ChatTemplateError(f"{model_dir}: has no chat template, so it can't hold a conversation")
        added = self._tokenizer.added_tokens_decoder.items()
        # Some families structure turns with added tokens that they don't call special, as DeepSeek's <｜User｜>.
        named = str(self._template)
        self._special = {
            token.content: index
            for index, token in added
            if token.special or (token.content in named and _is_marker(token.content))
        }
        self.eos_token_ids = _eos_ids(model_dir, self._tokenizer.eos_token_id)
        """Ids that end the model's output, by its own generation settings."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text -> id of the tokens that structure a conversation."""
        return self._special

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text. Special tokens in it are recognised; none is added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of ids. Ids that are no whole character become U+FFFD."""
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        return text

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, generate: bool
    ) -> str:
        """The conversation as text; with `generate`, up to where the assistant's next turn begins.

        A template that refuses the conversation, or breaks on it, is a ChatTemplateError.
        """
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self._template,
                add_generation_prompt=generate,
                tokenize=False,
                **self._options,
            )
        except Exception as error:  # a template is a program of unknown origin, which raises anything
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ChatTemplateError(f"the chat template refuses a conversation of {roles}: {error}") from error
        return text


def _is_marker(text: str) -> bool:
    return len(text) > 2 and text[0] + text[-1] in ("<>", "[]")


def _eos_ids(model_dir: Path, fallback: int | None) -> tuple[int, ...]:
    """`eos_token_id` of generation_config.json, which lists more than the tokenizer knows, or the tokenizer's."""
    file = model_dir / "generation_config.json"
    try:
        named = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        named = None
    ids = named if isinstance(named, list) else [named]
    return tuple(i for i in ids if isinstance(i, int)) or (() if fallback is None else (fallback,))
