"""Tool calls in the formats of DeepSeek V3, R1 and V3.1. Pure.

V3 and R1 write a type, the name and fenced JSON, V3.1 the name and JSON:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>code_interpreter
    ```json
    {"code": "print(1)"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>code_interpreter<｜tool▁sep｜>{"code": "print(1)"}<｜tool▁call▁end｜>...
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollout.tools.calls import (
    MalformedCall,
    ToolCall,
    checked_call,
    json_problem,
    openings,
    read_json,
    shorten,
    skip_space,
)

__all__ = ["DeepSeekFormat"]

_BEGIN = "<｜tool▁call▁begin｜>"
_SEP = "<｜tool▁sep｜>"
_END = "<｜tool▁call▁end｜>"
_ALL_END = "<｜tool▁calls▁end｜>"
_OPENING = re.compile(_BEGIN)
_FENCED = re.compile(r"\s*([^\s`]+)\s*```(?:json)?")


class DeepSeekFormat:
    """`deepseek`: both formats."""

    name = "deepseek"

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall | MalformedCall, ...]:
        calls: list[ToolCall | MalformedCall] = []
        position = 0
        while (mark := openings(text, _OPENING, position)) is not None:
            call, position = _parse_call(text, mark.end())
            calls.append(call)
        return tuple(calls)


def _parse_call(text: str, start: int) -> tuple[ToolCall | MalformedCall, int]:
    stop = _end_of_broken(text, start)
    sep = text.find(_SEP, start)
    if sep < 0 or sep > stop:
        return MalformedCall(f"{_SEP} is missing between its name and its arguments", text[start:stop].strip()), stop
    begin, name = sep + len(_SEP), text[start:sep].strip()
    fence = _FENCED.match(text, begin) if name == "function" else None
    if fence is not None:
        name, begin = fence[1], fence.end()
    value, end, error = read_json(text, begin)
    if error is not None:
        begin = skip_space(text, begin)
        problem = json_problem(error, text, begin, stop, cut_off=text.find(_END, start) < 0)
        return MalformedCall(problem, text[start:stop].strip(), name), stop
    if not text.startswith(_END, end):  # behind the value: a fence, or white space
        stop = _end_of_broken(text, end)
        rest = text[end:stop].strip().removeprefix("```").strip()
        if rest:
            problem = f"after its JSON value, {_END} must follow, but there is {shorten(rest)}"
            return MalformedCall(problem, text[start:stop].strip(), name), stop
        if not text.startswith(_END, stop):
            return MalformedCall(f"it is not closed: {_END} is missing", text[start:stop].strip(), name), stop
        end = stop
    return checked_call({"name": name, "arguments": value}, text[start:end].strip()), end + len(_END)


def _end_of_broken(text: str, start: int) -> int:
    ends = [end for end in (text.find(mark, start) for mark in (_END, _ALL_END, _BEGIN)) if end >= 0]
    return min(ends, default=len(text))
