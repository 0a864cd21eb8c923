"""Tool calls that are JSON values behind a mark, or alone: Llama's and Mistral's formats. Pure.

Llama 3.x writes nothing but the call, or several with `;` between them, `<|python_tag|>` before them or not:

    {"name": "code_interpreter", "parameters": {"code": "print(1)"}}

Mistral up to its tokenizer v7 writes a list, later versions a name and arguments per call:

    [TOOL_CALLS][{"name": "code_interpreter", "arguments": {"code": "print(1)"}, "id": "a1B2c3D4e"}]
    [TOOL_CALLS]code_interpreter[CALL_ID]a1B2c3D4e[ARGS]{"code": "print(1)"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
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

__all__ = ["Llama3Format", "MistralFormat"]

_PYTHON = "<|python_tag|>"
_LLAMA_CALL = re.compile(r'\{\s*"(?:name|type|parameters|function)"\s*:')
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_MISTRAL = re.compile(re.escape("[TOOL_CALLS]"))
_HEAD = re.compile(r"\s*([\w.:-]+)\s*(?:\[CALL_ID\]\s*([\w-]+)\s*)?(?:\[ARGS\]\s*)?(?=\{)")


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


class MistralFormat:
    """`mistral`: both of Mistral's formats."""

    name = "mistral"

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall | MalformedCall, ...]:
        calls: list[ToolCall | MalformedCall] = []
        position = 0
        while (mark := openings(text, _MISTRAL, position)) is not None:
            begin = skip_space(text, mark.end())
            head = _HEAD.match(text, begin)
            parsed, position = _listed(text, begin) if head is None else _named(text, begin, head)
            calls += parsed
        return tuple(calls)


def _llama_call(value: Any, raw: str) -> ToolCall | MalformedCall:
    if isinstance(value, dict) and isinstance(value.get("function"), str) and "name" not in value:
        value = value | {"name": value["function"]}
    key = "arguments" if isinstance(value, dict) and "arguments" in value else "parameters"
    return checked_call(value, raw, arguments_key=key)


def _listed(text: str, begin: int) -> tuple[list[ToolCall | MalformedCall], int]:
    value, end, error = read_json(text, begin)
    if error is not None:
        stop = _end_of_broken(text, begin)
        problem = json_problem(error, text, begin, stop, cut_off=stop == len(text))
        return [MalformedCall(problem, text[begin:stop].strip())], stop
    raw = text[begin:end].strip()
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list) or not value:
        return [MalformedCall(f"after [TOOL_CALLS] a list of calls must follow, but there is {shorten(raw)}", raw)], end
    return [checked_call(each, raw) for each in value], end


def _named(text: str, begin: int, head: re.Match[str]) -> tuple[list[ToolCall | MalformedCall], int]:
    name, call_id = head[1], head[2]
    value, end, error = read_json(text, head.end())
    if error is not None:
        stop = _end_of_broken(text, begin)
        problem = json_problem(error, text, head.end(), stop, cut_off=stop == len(text))
        return [MalformedCall(problem, text[begin:stop].strip(), name)], stop
    call = checked_call({"name": name, "arguments": value}, text[begin:end].strip())
    return [replace(call, call_id=call_id) if isinstance(call, ToolCall) else call], end


def _end_of_broken(text: str, start: int) -> int:
    mark = _MISTRAL.search(text, start)
    return len(text) if mark is None else mark.start()
