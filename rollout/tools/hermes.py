"""Finds the tool calls in a turn's text, in the format of Hermes and Qwen models. Pure.

    <tool_call>
    {"name": "code_interpreter", "arguments": {"code": "print(1)"}}
    </tool_call>

A call that is not in order is not dropped: it is returned with what is wrong and where, so that the model can be told.
A `</tool_call>` inside a JSON string is part of the string. Closed `<think>` blocks are skipped; after an unclosed one
calls still count. What stands around the calls is not judged, and neither is whether the tool exists.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

__all__ = ["MalformedCall", "ToolCall", "parse_tool_calls"]

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_THINK = "<think>"
_THOUGHT = "</think>"
_TAG = re.compile(f"{_OPEN}|{_THINK}")
_SPACE = re.compile(r"\s*")
_NEAR = 24
"""Characters shown on each side of a JSON error."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in order."""

    name: str
    arguments: dict[str, Any]
    raw: str
    """The text between the tags."""


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A call that can't be understood."""

    problem: str
    """What is wrong and where, for the model: a clause without a full stop."""
    raw: str
    """The text after the opening tag, up to the end of the call."""


def parse_tool_calls(text: str) -> tuple[ToolCall | MalformedCall, ...]:
    """Every call of a turn, in order. Never raises."""
    calls: list[ToolCall | MalformedCall] = []
    position = 0
    while (tag := _TAG.search(text, position)) is not None:
        position = tag.end()
        if tag.group() == _THINK:
            end = text.find(_THOUGHT, position)
            position = position if end < 0 else end + len(_THOUGHT)
        else:
            call, position = _parse_call(text, position)
            calls.append(call)
    return tuple(calls)


def _parse_call(text: str, start: int) -> tuple[ToolCall | MalformedCall, int]:
    """The call whose opening tag ends at `start`, and where to go on."""
    begin = _skip_space(text, start)
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        end = _end_of_broken(text, start)
        return MalformedCall(_json_problem(error, text, begin, end), text[start:end].strip()), end
    after = _skip_space(text, end)
    if text.startswith(_CLOSE, after):
        return _checked(value, text[start:end].strip()), after + len(_CLOSE)
    stop = _end_of_broken(text, end)
    raw = text[start:stop].strip()
    if stop == after:
        return MalformedCall(f"it is not closed: {_CLOSE} is missing", raw), stop
    problem = f"after its JSON value, {_CLOSE} must follow, but there is {_shorten(text[after:stop])}"
    return MalformedCall(problem, raw), stop


def _checked(value: Any, raw: str) -> ToolCall | MalformedCall:
    if not isinstance(value, dict):
        return MalformedCall(f"it must be a JSON object, but is {_kind(value)}", raw)
    name, arguments = value.get("name"), value.get("arguments", {})
    if "name" not in value:
        return MalformedCall('"name" is missing', raw)
    if not isinstance(name, str) or not name:
        return MalformedCall(f'"name" must be the name of a function, but is {_kind(name)}', raw)
    if not isinstance(arguments, dict):
        return MalformedCall(f'"arguments" must be a JSON object, but is {_kind(arguments)}', raw)
    return ToolCall(name, arguments, raw)


def _end_of_broken(text: str, start: int) -> int:
    """Where a call that can't be read ends: before its closing tag, the next call, or at the end of the text."""
    ends = [end for end in (text.find(_CLOSE, start), text.find(_OPEN, start)) if end >= 0]
    return min(ends, default=len(text))


def _json_problem(error: Exception, text: str, begin: int, end: int) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return f"its JSON can't be read: {error}" if isinstance(error, ValueError) else "its JSON is nested too deeply"
    if begin >= end:
        return "it is empty"
    if error.pos >= len(text) or (error.msg.startswith("Unterminated string") and text.find(_CLOSE, begin) < 0):
        return "its JSON is cut off"
    line = text.count("\n", begin, error.pos) + 1
    column = error.pos - max(text.rfind("\n", begin, error.pos) + 1, begin) + 1
    near = text[max(begin, error.pos - _NEAR) : min(end, error.pos + _NEAR)]
    return f"its JSON is wrong at line {line}, column {column}, near {_shorten(near)}: {error.msg}"


def _skip_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    assert match is not None
    return match.end()


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return f'"{text}"' if len(text) <= 2 * _NEAR else f'"{text[: 2 * _NEAR]}..."'


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    if value == "":
        return "an empty string"
    return names.get(type(value), "a number")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
