"""Events as JSON objects, in the shape of the OpenHands SDK: `kind`, the common fields, and those of the kind.

What reads the dictionaries of that SDK's conversations reads these. Two things are ours: a TokenEvent has further keys
(`logprobs`, `llm_response_id`, `weight_versions`, `finish_reason`), which `strict` leaves out, because the SDK's models
refuse keys that they don't know; and actions and observations are called after the tool, as `BashAction`.
"""

from __future__ import annotations

import re
from typing import Any

from rollout.events.events import (
    ActionEvent,
    AgentErrorEvent,
    Event,
    MessageEvent,
    ObservationEvent,
    SystemPromptEvent,
    TokenEvent,
)

__all__ = ["event_json"]


def event_json(event: Event, *, strict: bool = False) -> dict[str, Any]:
    """What `json.dumps` takes."""
    common = {
        "kind": type(event).__name__,
        "id": event.id,
        "timestamp": event.timestamp,
        "source": str(event.source),
    }
    match event:
        case SystemPromptEvent():
            return common | {"system_prompt": _text(event.text), "tools": []}
        case MessageEvent():
            return common | _message(event)
        case ActionEvent():
            return common | _action(event)
        case ObservationEvent():
            return common | _observation(event)
        case AgentErrorEvent():
            return common | {"tool_name": event.tool_name, "tool_call_id": event.tool_call_id, "error": event.error}
        case TokenEvent():
            return common | _tokens(event, strict)


def _message(event: MessageEvent) -> dict[str, Any]:
    return {
        "llm_message": {
            "role": event.role,
            "content": [_text(event.text)],
            "tool_calls": None,
            "tool_call_id": None,
            "name": None,
            "reasoning_content": event.reasoning_content,
            "thinking_blocks": [],
        },
        "llm_response_id": event.llm_response_id,
        "activated_skills": [],
        "extended_content": [],
        "sender": None,
    }


def _action(event: ActionEvent) -> dict[str, Any]:
    action = None if event.arguments is None else {**event.arguments, "kind": _kind(event.tool_name, "Action")}
    return {
        "thought": [_text(event.thought)] if event.thought else [],
        "reasoning_content": event.reasoning_content,
        "thinking_blocks": [],
        "action": action,
        "tool_name": event.tool_name,
        "tool_call_id": event.tool_call_id,
        "tool_call": {
            "id": event.tool_call_id,
            "name": event.tool_name,
            "arguments": event.written,
            "origin": "completion",
        },
        "llm_response_id": event.llm_response_id,
        "security_risk": "UNKNOWN",
        "summary": None,
    }


def _observation(event: ObservationEvent) -> dict[str, Any]:
    return {
        "tool_name": event.tool_name,
        "tool_call_id": event.tool_call_id,
        "observation": {
            "kind": _kind(event.tool_name, "Observation"),
            "content": [_text(event.text)],
            "is_error": event.is_error,
        },
        "action_id": event.action_id,
        "extended_content": [],
    }


def _tokens(event: TokenEvent, strict: bool) -> dict[str, Any]:
    ids: dict[str, Any] = {
        "prompt_token_ids": list(event.prompt_token_ids),
        "response_token_ids": list(event.response_token_ids),
    }
    if strict:
        return ids
    return ids | {
        "logprobs": list(event.logprobs),
        "llm_response_id": event.llm_response_id,
        "weight_versions": list(event.weight_versions),
        "finish_reason": str(event.finish_reason),
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _kind(tool: str, suffix: str) -> str:
    """`LocalizationFinishAction` of `localization_finish`."""
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[^0-9A-Za-z]+", tool)) + suffix
