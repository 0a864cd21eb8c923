"""Messages of a conversation as clients send them, and when two of them are the same. Pure.

Clients send one message in many forms: content as text, as a list of parts, null or left out; arguments of a call as
JSON with other spaces; fields of their own beside OpenAI's. What a message says is compared, not how it is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.capture.errors import ApiError, bad_parameter
from rollout.tokens.tokenizer import Message

__all__ = ["Call", "ChatMessage", "difference", "parse_messages", "shorten"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""OpenAI's role -> the chat template's."""
_UNSUPPORTED = ("audio", "function_call", "prefix", "partial")
"""Fields of a message that would change what the model sees, and can't be followed."""
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an assistant's message."""

    id: str
    name: str
    arguments: str
    """JSON, as the model or the client wrote it; from a model it may be malformed."""

    @property
    def meaning(self) -> tuple[str, str]:
        """Equal for calls that ask for the same."""
        try:
            return self.name, json.dumps(json.loads(self.arguments), sort_keys=True)
        except (ValueError, RecursionError):
            return self.name, self.arguments.strip()


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message. `role` is system, user, assistant or tool."""

    role: str
    content: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str | None = None
    tool_call_id: str | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for assistant's messages that say the same, thoughts aside."""
        return self.role, self.content.strip(), tuple(call.meaning for call in self.calls)

    def plain(self) -> Message:
        """For a chat template that knows role and content alone: thoughts and calls are written into the text, in the
        format of Hermes and Qwen models."""
        parts = [f"<think>\n{self.reasoning}\n</think>\n\n"] if self.reasoning else []
        parts.append(self.content)
        for index, call in enumerate(self.calls):
            before = "\n" if self.content or index else ""
            body = f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}'
            parts.append(f"{before}<tool_call>\n{body}\n</tool_call>")
        return {"role": self.role, "content": "".join(parts)}


def difference(recorded: ChatMessage, given: ChatMessage) -> str | None:
    """Which field of a message says something else than the recorded one, with both; None when they are the same.

    An assistant's content is compared without the space around it, because clients strip it; thoughts are compared only
    where the client sent any, because most leave them out.
    """
    if recorded.role != given.role:
        return f"role is {given.role}, was {recorded.role}"
    assistant = recorded.role == "assistant"
    old, new = (m.content.strip() if assistant else m.content for m in (recorded, given))
    if old != new:
        return f"content {_first_difference(old, new)}"
    if [call.meaning for call in recorded.calls] != [call.meaning for call in given.calls]:
        names = [", ".join(call.name for call in m.calls) or "none" for m in (given, recorded)]
        return f"tool_calls: has other ones ({names[0]}; recorded: {names[1]})"
    if assistant and given.reasoning and given.reasoning.strip() != (recorded.reasoning or "").strip():
        return f"reasoning_content {_first_difference((recorded.reasoning or '').strip(), given.reasoning.strip())}"
    return None


def parse_messages(value: Any) -> tuple[ChatMessage, ...]:
    """The messages of a request. Raises ApiError naming the field."""
    if not isinstance(value, list) or not value:
        raise bad_parameter("messages", f"is {shorten(value)}, must be a list of at least one message")
    messages = tuple(_parse(message, f"messages[{index}]") for index, message in enumerate(value))
    if messages[-1].role == "assistant":
        where = f"messages[{len(messages) - 1}].role"
        raise bad_parameter(where, "is assistant, but a turn is sampled after a message of user, tool or system")
    return messages


def shorten(value: Any) -> str:
    """A value in an error's text."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _parse(value: Any, where: str) -> ChatMessage:
    if not isinstance(value, Mapping):
        raise bad_parameter(where, f"is {shorten(value)}, must be an object")
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad_parameter(f"{where}.role", f"is {shorten(role)}, must be one of: {', '.join(_ROLES)}")
    for name in _UNSUPPORTED:
        if value.get(name) is not None:
            raise bad_parameter(f"{where}.{name}", "is not supported", code="unsupported_parameter")
    calls: tuple[Call, ...] = ()
    reasoning = None
    if role == "assistant":
        calls = _parse_calls(value.get("tool_calls"), f"{where}.tool_calls")
        reasoning = value.get("reasoning_content") or value.get("reasoning")
        reasoning = reasoning if isinstance(reasoning, str) else None
    content = _parse_content(value.get("content"), f"{where}.content")
    if role != "assistant" and value.get("content") is None:
        raise bad_parameter(f"{where}.content", "is missing")
    answers = value.get("tool_call_id") if role == "tool" else None
    return ChatMessage(_ROLES[role], content, calls, reasoning, answers if isinstance(answers, str) else None)


def _parse_content(value: Any, where: str) -> str:
    """Text of a content in any of its forms. Halves of surrogate pairs, which no tokenizer takes, are refused."""
    if value is None:
        return ""
    if isinstance(value, str):
        text = value
    elif isinstance(value, list):
        text = "".join(_parse_part(part, f"{where}[{index}]") for index, part in enumerate(value))
    else:
        raise bad_parameter(where, f"is {shorten(value)}, must be a string or a list of text parts")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise bad_parameter(where, f"holds half of a surrogate pair at character {error.start}") from None
    return text


def _parse_part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        kind = part.get("type") if isinstance(part, Mapping) else part
        raise bad_parameter(where, f"is a part of type {shorten(kind)}, only text is supported")
    text: str = part["text"]
    return text


def _parse_calls(value: Any, where: str) -> tuple[Call, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise bad_parameter(where, f"is {shorten(value)}, must be a list of tool calls")
    return tuple(_parse_call(call, f"{where}[{index}]") for index, call in enumerate(value))


def _parse_call(value: Any, where: str) -> Call:
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or value.get("type", "function") != "function":
        raise bad_parameter(where, f"is {shorten(value)}, must be a call of type function")
    name, arguments, given = function.get("name"), function.get("arguments", "{}"), value.get("id")
    if not isinstance(name, str):
        raise bad_parameter(f"{where}.function.name", f"is {shorten(name)}, must be a string")
    if not isinstance(arguments, str):
        raise _not_text(f"{where}.function.arguments", arguments)
    return Call(given if isinstance(given, str) else "", name, arguments)


def _not_text(where: str, value: Any) -> ApiError:
    return bad_parameter(where, f"is {shorten(value)}, must be a string of JSON")


def _first_difference(old: str, new: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return f"differs at character {at}: is {shorten(new[at : at + 40])}, was {shorten(old[at : at + 40])}"
