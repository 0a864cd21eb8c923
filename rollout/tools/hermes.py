"""Finds the tool calls in a turn's text, in the format of Hermes and Qwen models. Pure.

    <tool_call>
    {"name": "code_interpreter", "arguments": {"code": "print(1)"}}
    </tool_call>

A `</tool_call>` inside a JSON string is part of the string.
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

__all__ = ["HermesFormat", "MalformedCall", "ToolCall", "parse_tool_calls"]

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_OPENING = re.compile(_OPEN)


class HermesFormat:
    """`hermes`: JSON objects in tags."""

    name = "hermes"

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall | MalformedCall, ...]:
        calls: list[ToolCall | MalformedCall] = []
        position = 0
        while (tag := openings(text, _OPENING, position)) is not None:
            call, position = _parse_call(text, tag.end())
            calls.append(call)
        return tuple(calls)


def parse_tool_calls(text: str) -> tuple[ToolCall | MalformedCall, ...]:
    """Every call of a turn in the Hermes format, in order. Never raises."""
    return HermesFormat().parse(text)


def _parse_call(text: str, start: int) -> tuple[ToolCall | MalformedCall, int]:
    """The call whose opening tag ends at `start`, and where to go on."""
    value, end, error = read_json(text, start)
    if error is not None:
        end = _end_of_broken(text, start)
        cut_off = text.find(_CLOSE, start) < 0
        problem = json_problem(error, text, skip_space(text, start), end, cut_off=cut_off)
        return MalformedCall(problem, text[start:end].strip()), end
    after = skip_space(text, end)
    if text.startswith(_CLOSE, after):
        return checked_call(value, text[start:end].strip()), after + len(_CLOSE)
    stop = _end_of_broken(text, end)
    raw = text[start:stop].strip()
    if stop == after:
        return MalformedCall(f"it is not closed: {_CLOSE} is missing", raw), stop
    problem = f"after its JSON value, {_CLOSE} must follow, but there is {shorten(text[after:stop])}"
    return MalformedCall(problem, raw), stop


def _end_of_broken(text: str, start: int) -> int:
    """Where a call that can't be read ends: before its closing tag, the next call, or at the end of the text."""
    ends = [end for end in (text.find(_CLOSE, start), text.find(_OPEN, start)) if end >= 0]
    return min(ends, default=len(text))
