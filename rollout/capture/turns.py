"""A sampled turn as an assistant's message: thoughts, content and tool calls taken apart. Pure.

The format is that of Hermes and Qwen models. A call that is not in order is not dropped: where it names a function, it
is handed over as a call whose arguments are the model's own text and no JSON object, so that the agent answers it with
an error and the model can correct itself; where it can't be, its text stays in the content.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from rollout.capture.messages import Call, ChatMessage
from rollout.tools.calls import MalformedCall, ToolCall
from rollout.tools.marked_calls import parse_tool_calls

__all__ = ["ParsedTurn", "TurnParser", "new_call_id", "parse_hermes_turn"]

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_THOUGHT = re.compile(r"\s*(?:<think>)?(.*?)</think>", re.DOTALL)
_OPEN_THOUGHT = re.compile(r"\s*<think>(.*)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*("(?:[^"\\]|\\.)*")')
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*(.*)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What a turn says."""

    message: ChatMessage
    problems: tuple[str, ...] = ()
    """What is wrong with its malformed calls, in their order."""


TurnParser = Callable[[str, bool], ParsedTurn]
"""(text of a turn, whether tools were offered) -> what it says. Never raises."""


def new_call_id() -> str:
    """Unique."""
    return f"call_{uuid.uuid4().hex[:24]}"


def parse_hermes_turn(text: str, tools: bool) -> ParsedTurn:
    """`<think>...</think>`, content, `<tool_call>...</tool_call>`. Without `tools`, calls are part of the content."""
    reasoning, rest = _split_thought(text)
    if not tools or _OPEN not in rest:
        return ParsedTurn(ChatMessage("assistant", rest.strip(), (), reasoning))
    found = parse_tool_calls(rest)
    calls = []
    kept = []
    for call in found:
        read = _call_of(call)
        if read is None:
            assert isinstance(call, MalformedCall)
            kept.append(f"{_OPEN}{call.raw}")
        else:
            calls.append(read)
    content = _without_calls(rest, found).strip()
    content = "\n".join(part for part in (content, *kept) if part)
    problems = tuple(call.problem for call in found if isinstance(call, MalformedCall))
    return ParsedTurn(ChatMessage("assistant", content, tuple(calls), reasoning), problems)


def _split_thought(text: str) -> tuple[str | None, str]:
    """Thoughts and the rest. The template may have opened the block itself, so `</think>` alone also ends one; a block
    that is not closed takes everything, unless a call follows in it."""
    match = _THOUGHT.match(text)
    if match is not None and (text.lstrip().startswith("<think>") or _OPEN not in match[1]):
        return match[1].strip() or None, text[match.end() :]
    if (match := _OPEN_THOUGHT.match(text)) is not None:
        thought, opened, calls = match[1].partition(_OPEN)
        return thought.strip() or None, opened + calls
    return None, text


def _without_calls(text: str, calls: tuple[ToolCall | MalformedCall, ...]) -> str:
    """What stands around the calls."""
    parts, position = [], 0
    for call in calls:
        start = text.index(_OPEN, position)
        parts.append(text[position:start])
        position = text.index(call.raw, start + len(_OPEN)) + len(call.raw)
        after = len(text) - len(text[position:].lstrip())
        position = after + len(_CLOSE) if text.startswith(_CLOSE, after) else position
    return "".join([*parts, text[position:]])


def _call_of(call: ToolCall | MalformedCall) -> Call | None:
    if isinstance(call, ToolCall):
        return Call(new_call_id(), call.name, json.dumps(call.arguments, ensure_ascii=False))
    name = _NAME.search(call.raw)
    if name is None:
        return None
    try:
        read = json.loads(name[1])
    except ValueError:
        return None
    match = _ARGUMENTS.search(call.raw)
    arguments = call.raw if match is None else match[1]
    # Nobody may run what was not written in order, so it is handed over only where its arguments can't be read.
    return None if not read or _is_object(arguments) else Call(new_call_id(), read, arguments)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
