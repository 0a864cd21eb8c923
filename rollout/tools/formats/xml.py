"""Tool calls in tags with a tag for each argument: the formats of Qwen3-Coder and of GLM 4.5 and later. Pure.

    <tool_call>                                 <tool_call>code_interpreter
    <function=code_interpreter>                 <arg_key>code</arg_key>
    <parameter=code>                            <arg_value>print(1)</arg_value>
    print(1)                                    </tool_call>
    </parameter>
    </function>
    </tool_call>

Arguments are text; where the tool's schema says that one is no string, its text is read as JSON, and stays text if that
fails, so that the tool's own check can name it. One line break on each side of a parameter's text belongs to the tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rollout.tools.formats.calls import MalformedCall, ToolCall, bounded, is_deep, openings, shorten, skip_space

_CLOSE = "</tool_call>"
_CODER_OPENING = re.compile(r"(?:<tool_call>\s*)?<function=")
_CODER_NAME = re.compile(r"\s*([^\s<>]+)\s*>")
_CODER_PARAMETER = re.compile(r"\s*<parameter=([^\s<>]+)\s*>")
_FUNCTION_END = "</function>"
_PARAMETER_END = "</parameter>"
_GLM_OPENING = re.compile("<tool_call>")
_GLM_NAME = re.compile(r"\s*([^\s<>{}]+)\s*")
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_Types = Mapping[tuple[str, str], Any]
_Reader = Callable[[str, int, _Types], tuple[ToolCall | MalformedCall, int]]
"""Reads the call whose opening ends at a place: (the call, where to go on)."""


class Qwen3CoderFormat:
    """`qwen3_coder`. Models leave the outer tag out at times; a call without it counts."""

    name = "qwen3_coder"

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall | MalformedCall, ...]:
        return bounded(_calls(text, _CODER_OPENING, _coder_call, _types(tools)))


class GlmFormat:
    """`glm45`."""

    name = "glm45"

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall | MalformedCall, ...]:
        return bounded(_calls(text, _GLM_OPENING, _glm_call, _types(tools)))


def _calls(text: str, opening: re.Pattern[str], read: _Reader, types: _Types) -> Iterator[ToolCall | MalformedCall]:
    position = 0
    while (mark := openings(text, opening, position)) is not None:
        call, position = read(text, mark.end(), types)
        yield call


def _coder_call(text: str, start: int, types: _Types) -> tuple[ToolCall | MalformedCall, int]:
    head = _CODER_NAME.match(text, start)
    if head is None:
        stop = _next(text, start, _FUNCTION_END, "<function=")
        problem = "the name of the function is missing" if stop < len(text) else "it is cut off in its name"
        return MalformedCall(problem, text[start:stop].strip()), stop
    name, position = head[1], head.end()
    arguments: dict[str, Any] = {}
    while (parameter := _CODER_PARAMETER.match(text, position)) is not None:
        key, begin = parameter[1], parameter.end()
        end = text.find(_PARAMETER_END, begin)
        if end < 0:
            problem = f'its parameter "{key}" is not closed: {_PARAMETER_END} is missing'
            return MalformedCall(problem, text[start:].strip(), name), len(text)
        if key in arguments:
            return MalformedCall(f'its parameter "{key}" is given twice', text[start:end].strip(), name), end
        arguments[key] = _value(_unwrapped(text[begin:end]), types.get((name, key)))
        position = end + len(_PARAMETER_END)
    after = skip_space(text, position)
    if text.startswith(_FUNCTION_END, after):
        end = after + len(_FUNCTION_END)
        close = skip_space(text, end)
        return ToolCall(name, arguments, text[start:after].strip()), close if text.startswith(_CLOSE, close) else end
    stop = _next(text, after, _FUNCTION_END, "<function=")
    raw = text[start:stop].strip()
    if stop == after:
        return MalformedCall(f"it is not closed: {_FUNCTION_END} is missing", raw, name), stop
    problem = f"<parameter=...> or {_FUNCTION_END} must follow, but there is {shorten(text[after:stop])}"
    return MalformedCall(problem, raw, name), stop


def _glm_call(text: str, start: int, types: _Types) -> tuple[ToolCall | MalformedCall, int]:
    stop = _next(text, start, _CLOSE, "<tool_call>")
    head = _GLM_NAME.match(text, start)
    if head is None or head.end() > stop:
        problem = "the name of the function is missing" if stop < len(text) else "it is cut off in its name"
        return MalformedCall(problem, text[start:stop].strip()), stop
    name, position = head[1], head.end()
    arguments: dict[str, Any] = {}
    while (argument := _glm_argument(text, position)) is not None:
        key, value, position = argument
        if key in arguments:
            return MalformedCall(f'its argument "{key}" is given twice', text[start:stop].strip(), name), stop
        arguments[key] = _value(value, types.get((name, key)))
    after = skip_space(text, position)
    if text.startswith(_CLOSE, after):
        return ToolCall(name, arguments, text[start:position].strip()), after + len(_CLOSE)
    stop = _next(text, after, _CLOSE, "<tool_call>")
    raw = text[start:stop].strip()
    if stop == after:
        return MalformedCall(f"it is not closed: {_CLOSE} is missing", raw, name), stop
    problem = f"<arg_key> with <arg_value>, or {_CLOSE}, must follow, but there is {shorten(text[after:stop])}"
    return MalformedCall(problem, raw, name), stop


def _glm_argument(text: str, start: int) -> tuple[str, str, int] | None:
    """(key, text of the value, where it ends) of the argument at `start`; None: there is none, or it isn't closed."""
    start = skip_space(text, start)
    if not text.startswith(_KEY, start):
        return None
    key_end = text.find(_KEY_END, start)
    begin = skip_space(text, key_end + len(_KEY_END))
    if key_end < 0 or not text.startswith(_VALUE, begin):
        return None
    end = text.find(_VALUE_END, begin)
    if end < 0:
        return None
    key = text[start + len(_KEY) : key_end].strip()
    return key, text[begin + len(_VALUE) : end], end + len(_VALUE_END)


def _types(tools: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
    """(tool, parameter) -> its schema's type."""
    types = {}
    for tool in tools:
        function = tool.get("function", tool)
        for key, schema in (function.get("parameters") or {}).get("properties", {}).items():
            types[function.get("name"), key] = schema.get("type") if isinstance(schema, Mapping) else None
    return types


def _value(text: str, kind: Any) -> Any:
    if kind in (None, "string") or (isinstance(kind, list) and "string" in kind):
        return text
    try:
        value = json.loads(text)
        return text if is_deep(value) else value
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)


def _unwrapped(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


def _next(text: str, start: int, *marks: str) -> int:
    return min((at for at in (text.find(mark, start) for mark in marks) if at >= 0), default=len(text))
