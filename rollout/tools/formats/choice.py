"""Finds the format of a model's tool calls: named by a setting, or found out from its chat template.

A template that writes calls itself is asked to write one; the format that reads it back is the model's. If it has no
place for tools, the prompt asks for the Hermes format, so that is it. `sglang:NAME` is a parser of sglang, for families
that have none here.

Of gpt-oss a turn is messages of one channel each; the one whose header names a recipient is the call, and ends the
turn:

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.code_interpreter
    <|constrain|>json<|message|>{"code": "print(1)"}<|call|>

The recipient stands before or behind the channel; both are read. `<|call|>` may be left out, because it is the stop
token. Built-in tools (`to=python`, `to=browser.search`) are calls of these names.

Llama 3.x writes nothing but the call, or several with `;` between them, `<|python_tag|>` before them or not:

    {"name": "code_interpreter", "parameters": {"code": "print(1)"}}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairbox.errors import ConfigError
from rollout.tokens.chat import ChatTemplate, ChatTemplateError
from rollout.tokens.conversation import PROBE_NAME, PROBE_TOOL
from rollout.tools.formats.calls import (
    MalformedCall,
    ToolCall,
    ToolCallFormat,
    bounded,
    checked_call,
    json_problem,
    read_json,
    shorten,
    skip_space,
)
from rollout.tools.formats.marked import DEEPSEEK, HERMES, MISTRAL
from rollout.tools.formats.xml import GlmFormat, Qwen3CoderFormat

_PYTHON = "<|python_tag|>"
_LLAMA_CALL = re.compile(r'\{\s*"(?:name|type|parameters|function)"\s*:')
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)


class Llama3Format:
    """`llama3_json`: a turn that is a call from its beginning; text that holds JSON somewhere is an answer."""

    name = "llama3_json"

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall | MalformedCall, ...]:
        return bounded(self._read(text))

    def _read(self, text: str) -> Iterator[ToolCall | MalformedCall]:
        thought = _THOUGHT.match(text)
        start = skip_space(text, 0 if thought is None else thought.end())
        tagged = text.startswith(_PYTHON, start)
        start = skip_space(text, start + len(_PYTHON)) if tagged else start
        if not tagged and _LLAMA_CALL.match(text, start) is None:
            return
        while True:
            value, end, error = read_json(text, start)
            if error is not None:
                problem = json_problem(error, text, start, len(text), cut_off=True)
                yield MalformedCall(problem, text[start:].strip())
                return
            yield _llama_call(value, text[start:end].strip())
            after = skip_space(text, end)
            if not text.startswith(";", after):
                return
            start = skip_space(text, after + 1)


def _llama_call(value: Any, raw: str) -> ToolCall | MalformedCall:
    if isinstance(value, dict) and isinstance(value.get("function"), str) and "name" not in value:
        value = value | {"name": value["function"]}
    key = "arguments" if isinstance(value, dict) and "arguments" in value else "parameters"
    return checked_call(value, raw, arguments_key=key)


_HEADER = re.compile(r"(?:<\|start\|>assistant|\A)((?:(?!<\|(?:message|start|end|call)\|>).)*)<\|message\|>", re.DOTALL)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_END = re.compile(r"<\|(?:call|end|return|start)\|>|\Z")


class HarmonyFormat:
    """`gpt_oss`."""

    name = "gpt_oss"

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall | MalformedCall, ...]:
        return bounded(self._read(text))

    def _read(self, text: str) -> Iterator[ToolCall | MalformedCall]:
        for header in _HEADER.finditer(text):
            recipient = _RECIPIENT.search(header[1])
            if recipient is None or recipient[1].startswith("assistant"):
                continue
            end = _END.search(text, header.end())
            assert end is not None
            yield _call(recipient[1].removeprefix("functions."), text, header.end(), end.start())


def _call(name: str, text: str, start: int, stop: int) -> ToolCall | MalformedCall:
    body, raw = text[:stop], text[start:stop].strip()
    begin = skip_space(body, start)
    if begin >= stop:
        return ToolCall(name, {}, raw)
    value, end, error = read_json(body, begin)
    if error is not None:
        return MalformedCall(json_problem(error, body, begin, stop, cut_off=stop == len(text)), raw, name)
    rest = body[end:].strip()
    if rest:
        return MalformedCall(f"after its JSON value, <|call|> must follow, but there is {shorten(rest)}", raw, name)
    return checked_call({"name": name, "arguments": value}, raw)


AUTO = "auto"
"""The format that the chat template writes."""
_SGLANG = "sglang:"
FORMATS: dict[str, ToolCallFormat] = {
    each.name: each
    for each in (
        HERMES,
        Qwen3CoderFormat(),
        GlmFormat(),
        MISTRAL,
        DEEPSEEK,
        HarmonyFormat(),
        Llama3Format(),
    )
}
"""Formats that this package parses itself, by name."""
_ARGUMENTS = {"code": "print(1)\nprint('a \"b\" <c>')"}


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
    for as_text in (False, True):
        try:
            text = chat.conversation.rendered_call(_ARGUMENTS, as_text=as_text)
        except ChatTemplateError:
            continue
        for candidate in FORMATS.values():
            calls = candidate.parse(text, [PROBE_TOOL])
            read = [(call.name, call.arguments) for call in calls if isinstance(call, ToolCall)]
            if read == [(PROBE_NAME, _ARGUMENTS)] and len(calls) == 1:
                return candidate
    return None
