"""Finds the text of a sample that is its answer. Pure."""

from __future__ import annotations

from rollout.loop.limits import StopReason
from rollout.rewards.base import Sample
from rollout.rewards.reasoning import split_reasoning

_FINISH = "finish"
"""OpenHands' tool that ends a conversation with a message."""
_ASKED = (StopReason.TURNS, StopReason.TOOL_CALLS)
"""Stop reasons after which the last turn asked for a tool whose call was not run."""


def last_turn(sample: Sample) -> str:
    """The assistant's last turn as it was sampled, calls and thoughts included; empty if there is none."""
    said_by = (message["content"] for message in reversed(sample.messages) if message["role"] == "assistant")
    return next(said_by, "") if sample.messages and sample.turns else sample.text


def said(sample: Sample) -> str:
    """The last turn without its thoughts."""
    return split_reasoning(last_turn(sample))[1]


def final_message(sample: Sample) -> str:
    """The assistant's message to the user: that of its last call of `finish`, else its last turn if that calls no tool,
    else empty. Without thoughts."""
    for call in reversed(sample.tool_calls):
        message = (call.arguments or {}).get("message")
        if call.name == _FINISH and isinstance(message, str):
            return message
    if sample.stop_reason in _ASKED or any(call.turn == sample.turns for call in sample.tool_calls):
        return ""
    return said(sample)
