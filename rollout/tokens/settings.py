"""Settings of chat templates, each with its default and its meaning in one place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbox.errors import ConfigError
from fairbox.settings import check, setting
from rollout.tokens.chat import ChatTemplate, Rewrites
from rollout.tokens.tokenizer import HubTokenizer


@dataclass(frozen=True)
class ChatSettings:
    """The chat template of the model."""

    rewrites: str = setting(
        Rewrites.REFUSE.value,
        choices=Rewrites,
        help="A template that rewrites what was there before: refuse it, or keep the tokens.",
    )
    options: str = setting("{}", help='Variables for the template, a JSON object, as {"enable_thinking": false}.')
    template: str | None = setting(None, help="A file with another template than the model folder's.")

    def validate(self) -> None:
        """Raises ConfigError for what types can't say."""
        check(self, "chat")
        if self.template is not None and not Path(self.template).is_file():
            raise ConfigError(f"chat.template is {self.template!r}, which is no file")
        self._variables()

    def tokenizer(self, model_dir: Path) -> HubTokenizer:
        """The tokenizer of a model folder, with this template."""
        template = None if self.template is None else Path(self.template).read_text(encoding="utf-8")
        return HubTokenizer(model_dir, template=template, options=self._variables())

    def load(self, model_dir: Path) -> ChatTemplate:
        """The chat template of a model folder. Raises ChatTemplateError."""
        tokenizer = self.tokenizer(model_dir)
        return ChatTemplate(tokenizer, rewrites=Rewrites(self.rewrites), stop_token_ids=tokenizer.eos_token_ids)

    def _variables(self) -> dict[str, Any]:
        try:
            value = json.loads(self.options)
        except ValueError as error:
            raise ConfigError(f"chat.options is {self.options!r}, must be a JSON object: {error}") from None
        if not isinstance(value, dict):
            raise ConfigError(f"chat.options is {self.options!r}, must be a JSON object")
        return value
