"""Messages of a conversation as clients send them, and when two of them are the same. Pure.

Clients send one message in many forms: content as text, as a list of parts, null or left out; arguments of a call as
JSON with other spaces; fields of their own beside OpenAI's. What a message says is compared, not how it is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from rollout.capture.errors import ApiError, bad_parameter
from rollout.tokens.tokenizer import Message

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an assistant's message."""

    id: str
    name: str
    arguments: str
    """JSON, as the model or the client wrote it; from a model it may be malformed."""
    written_id: str | None = None
    """The id that the model itself gave it; None where its format has none, and for calls of clients."""

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
    """The field of a message that differs from the recorded one, with both values; None if they are the same.

    An assistant's content is compared without the space around it, because clients strip it; thoughts are compared only
    if the client sent any, because most leave them out.
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


class Wire(BaseModel):
    """Part of a request; fields that are not OpenAI's are kept in `model_extra`."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


def _encodable(text: str) -> str:
    """Halves of surrogate pairs, which no tokenizer takes, are refused."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"holds half of a surrogate pair at character {error.start}") from None
    return text


class _Part(Wire):
    type: Literal["text"]
    text: Annotated[str, AfterValidator(_encodable)]


class _Function(Wire):
    name: str
    arguments: str = "{}"


class _ToolCall(Wire):
    type: Literal["function"] = "function"
    id: str | None = None
    function: _Function


def _parts(given: Any) -> Any:
    return [{"type": "text", "text": given}] if isinstance(given, str) else given


class WireMessage(Wire):
    """A message as clients send it. Fields that would change what the model sees, and can't be followed, are None."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[_Part] | None, BeforeValidator(_parts)] = None
    tool_calls: list[_ToolCall] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_call_id: Any = None
    audio: None = None
    function_call: None = None
    prefix: None = None
    partial: None = None

    def meant(self) -> ChatMessage:
        """Returns the message as a `ChatMessage`."""
        content = "".join(part.text for part in self.content or ())
        if self.role != "assistant":
            role = "system" if self.role == "developer" else self.role
            answers = self.tool_call_id if role == "tool" and isinstance(self.tool_call_id, str) else None
            return ChatMessage(role, content, tool_call_id=answers)
        reasoning = self.reasoning_content or self.reasoning
        calls = (Call(call.id or "", call.function.name, call.function.arguments) for call in self.tool_calls or ())
        return ChatMessage(self.role, content, tuple(calls), reasoning if isinstance(reasoning, str) else None)


def parse_messages(messages: Sequence[WireMessage]) -> tuple[ChatMessage, ...]:
    """Returns the messages of a request. Raises ApiError naming the field if no turn can follow them."""
    if not messages:
        raise bad_parameter("messages", "is [], must be a list of at least one message")
    for index, message in enumerate(messages):
        if message.role != "assistant" and message.content is None:
            raise bad_parameter(f"messages[{index}].content", "is missing")
    if messages[-1].role == "assistant":
        where = f"messages[{len(messages) - 1}].role"
        raise bad_parameter(where, "is assistant, but a turn is sampled after a message of user, tool or system")
    return tuple(message.meant() for message in messages)


def refusal(error: ValidationError) -> ApiError:
    """400 for the first field that is wrong, by its path."""
    first = error.errors(include_url=False)[0]
    path = ""
    for step in first["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    if first["type"] == "none_required":
        return bad_parameter(path, "is not supported", code="unsupported_parameter")
    if first["type"] == "missing":
        return bad_parameter(path, "is missing")
    message = first["msg"][:1].lower() + first["msg"][1:]
    return bad_parameter(path, f"is {shorten(first['input'])}: {message}")


def shorten(value: Any) -> str:
    """A value in an error's text."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _first_difference(old: str, new: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return f"differs at character {at}: is {shorten(new[at : at + 40])}, was {shorten(old[at : at + 40])}"
