"""Tool calls of gpt-oss: a turn is messages of one channel each, and the one that names a recipient is the call. Pure.

The call ends the turn:

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.code_interpreter
    <|constrain|>json<|message|>{"code": "print(1)"}<|call|>

The recipient stands before or behind the channel; both are read. `<|call|>` may be left out, because it is the stop
token. Built-in tools (`to=python`, `to=browser.search`) are calls of these names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout.tools.formats.calls import (
    MalformedCall,
    ToolCall,
    bounded,
    checked_call,
    json_problem,
    read_json,
    shorten,
    skip_space,
)

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
