"""Tool calls of Llama 3.x: a turn that is nothing but the call, or several with `;` between them. Pure.

`<|python_tag|>` stands before them or not:

    {"name": "code_interpreter", "parameters": {"code": "print(1)"}}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout.tools.formats.calls import (
    CallKeys,
    MalformedCall,
    ToolCall,
    bounded,
    checked_call,
    json_problem,
    read_json,
    skip_space,
)

_PYTHON = "<|python_tag|>"
_LLAMA_CALL = re.compile(r'\{\s*"(?:name|type|parameters|function)"\s*:')
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)


class Llama3Format:
    """`llama3_json`: a turn that is a call from its beginning; text that holds JSON somewhere is an answer."""

    name = "llama3_json"
    around = (_PYTHON, ";")
    """Marks around calls."""

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
    return checked_call(value, raw, CallKeys(arguments=key))
