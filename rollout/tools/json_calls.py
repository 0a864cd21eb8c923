"""Tool calls that are JSON values alone: Llama's format. Pure.

Llama 3.x writes nothing but the call, or several with `;` between them, `<|python_tag|>` before them or not:

    {"name": "code_interpreter", "parameters": {"code": "print(1)"}}
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
    read_json,
    skip_space,
)

__all__ = ["Llama3Format"]

_PYTHON = "<|python_tag|>"
_LLAMA_CALL = re.compile(r'\{\s*"(?:name|type|parameters|function)"\s*:')
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)


class Llama3Format:
    """`llama3_json`: a turn that is a call from its beginning; text that holds JSON somewhere is an answer."""

    name = "llama3_json"

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall | MalformedCall, ...]:
        thought = _THOUGHT.match(text)
        start = skip_space(text, 0 if thought is None else thought.end())
        tagged = text.startswith(_PYTHON, start)
        start = skip_space(text, start + len(_PYTHON)) if tagged else start
        if not tagged and _LLAMA_CALL.match(text, start) is None:
            return ()
        calls: list[ToolCall | MalformedCall] = []
        while True:
            value, end, error = read_json(text, start)
            if error is not None:
                problem = json_problem(error, text, start, len(text), cut_off=True)
                return (*calls, MalformedCall(problem, text[start:].strip()))
            calls.append(_llama_call(value, text[start:end].strip()))
            after = skip_space(text, end)
            if not text.startswith(";", after):
                return tuple(calls)
            start = skip_space(text, after + 1)


def _llama_call(value: Any, raw: str) -> ToolCall | MalformedCall:
    if isinstance(value, dict) and isinstance(value.get("function"), str) and "name" not in value:
        value = value | {"name": value["function"]}
    key = "arguments" if isinstance(value, dict) and "arguments" in value else "parameters"
    return checked_call(value, raw, arguments_key=key)
