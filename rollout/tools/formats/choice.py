"""Finds the format of a model's tool calls: named by a setting, or found out from its chat template.

A template that writes calls itself is asked to write one; the format that reads it back is the model's. A template that
writes none may still have the mark of a format among its special tokens. If it has no place for tools, the prompt asks
for the Hermes format, so that is it. `sglang:NAME` is a parser of sglang, for families that have none here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbox.errors import ConfigError
from rollout.tokens.chat import ChatTemplate, ChatTemplateError
from rollout.tokens.conversation import PROBE_NAME, PROBE_TOOL
from rollout.tools.formats.calls import ToolCall, ToolCallFormat
from rollout.tools.formats.harmony import HarmonyFormat
from rollout.tools.formats.literal import GEMMA4, LFM2
from rollout.tools.formats.llama3 import Llama3Format
from rollout.tools.formats.marked import GRANITE3, KIMI_K2, MARKED
from rollout.tools.formats.tagged import TAGGED

AUTO = "auto"
"""The format that the chat template writes."""
_SGLANG = "sglang:"
FORMATS: dict[str, ToolCallFormat] = {
    each.name: each for each in (*MARKED, *TAGGED, HarmonyFormat(), Llama3Format(), GEMMA4, LFM2)
}
"""Formats that this package parses itself, by name."""
_ARGUMENTS: tuple[Mapping[str, Any], ...] = (
    {"code": "print(1)\nprint('a \"b\" <c>')"},
    {"code": "print(1)"},
)
"""Arguments of the calls that a template is asked to write. The second is for those that write quotes as they are."""


def check_format(name: str) -> None:
    """Raises ConfigError for a name that is none, before a model is loaded."""
    if name != AUTO and name not in FORMATS and not (name.startswith(_SGLANG) and name != _SGLANG):
        known = ", ".join((AUTO, *FORMATS))
        raise ConfigError(f"tool_format is {name!r}, must be one of {known}, or sglang:NAME for a parser of sglang")


def find_format(name: str, chat: ChatTemplate) -> ToolCallFormat:
    """The format of that name; with `auto` that of the template. Raises ConfigError."""
    check_format(name)
    if name.startswith(_SGLANG):
        from rollout.tools.formats.sglang_parsers import SglangFormat  # sglang

        return SglangFormat(name.removeprefix(_SGLANG))
    if name != AUTO:
        return FORMATS[name]
    found = template_format(chat)
    if found is None:
        known = ", ".join(FORMATS)
        raise ConfigError(
            f"tool_format is {AUTO!r}, but none of {known} reads the calls that the chat template writes; name one, "
            "or sglang:NAME for a parser of sglang"
        )
    return found


def template_format(chat: ChatTemplate) -> ToolCallFormat | None:
    """The format that reads back the call that the template writes; None when none does."""
    if not chat.conversation.has_tools:
        return FORMATS["hermes"]
    for arguments in _ARGUMENTS:
        for as_text in (False, True):
            try:
                text = chat.conversation.rendered_call(arguments, as_text=as_text)
            except ChatTemplateError:
                continue
            for candidate in FORMATS.values():
                calls = candidate.parse(text, [PROBE_TOOL])
                read = [(call.name, call.arguments) for call in calls if isinstance(call, ToolCall)]
                if read == [(PROBE_NAME, arguments)] and len(calls) == 1:
                    return candidate
    marked = (candidate for candidate in (KIMI_K2, LFM2, GRANITE3) if candidate.opening in chat.special_tokens)
    return next(marked, None)
