"""The events of a trajectory, in the vocabulary of the OpenHands SDK. Facts alone; `stream` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rollout.engines.base import FinishReason

__all__ = [
    "ActionEvent",
    "AgentErrorEvent",
    "Event",
    "EventSource",
    "MessageEvent",
    "ObservationEvent",
    "SystemPromptEvent",
    "TokenEvent",
]


class EventSource(StrEnum):
    """Whose an event is."""

    AGENT = "agent"
    """The model's, or said for it."""
    USER = "user"
    """Of the task."""
    ENVIRONMENT = "environment"
    """The tools'; also turns and answers that the prompt shows as examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """What all have."""

    id: str
    """A UUID that follows from the trajectory and the event's place in it."""
    timestamp: str
    """ISO 8601, UTC."""
    source: EventSource


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPromptEvent(_Event):
    """The prompt's system message."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEvent(_Event):
    """A message of the prompt, or a turn of the assistant that called no tool that was answered."""

    role: str
    text: str
    """Without what was thought."""
    reasoning_content: str | None = None
    """What was thought, from a closed `<think>` block; None: nothing."""
    llm_response_id: str | None = None
    """Of a turn; None in the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionEvent(_Event):
    """One call of a turn."""

    thought: str
    """What the turn says before its first call; empty but in the first of its actions."""
    reasoning_content: str | None
    """What was thought; None but in the first."""
    tool_name: str
    """Empty when it can't be told."""
    tool_call_id: str
    arguments: Mapping[str, Any] | None
    """None: the call was not run."""
    written: str
    """The arguments as JSON; of a call that can't be understood, the text as it was written."""
    llm_response_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationEvent(_Event):
    """The answer to a call that was run."""

    tool_name: str
    tool_call_id: str
    action_id: str
    text: str
    is_error: bool
    """Whether the program failed or was ended by a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentErrorEvent(_Event):
    """The answer to a call that was not run, as the model got it."""

    tool_name: str
    tool_call_id: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent(_Event):
    """The tokens of a turn; the last of its events."""

    llm_response_id: str
    prompt_token_ids: tuple[int, ...]
    """What the engine was given."""
    response_token_ids: tuple[int, ...]
    """What it sampled."""
    logprobs: tuple[float, ...]
    """Of those."""
    weight_versions: tuple[str, ...]
    """In order; usually one."""
    finish_reason: FinishReason


Event = SystemPromptEvent | MessageEvent | ActionEvent | ObservationEvent | AgentErrorEvent | TokenEvent
