"""The event stream of a trajectory: messages, actions, observations and tokens, as the OpenHands SDK names them."""

from rollout.events.events import (
    ActionEvent,
    AgentErrorEvent,
    Event,
    EventSource,
    MessageEvent,
    ObservationEvent,
    SystemPromptEvent,
    TokenEvent,
)
from rollout.events.form import event_json
from rollout.events.stream import trajectory_events

__all__ = [
    "ActionEvent",
    "AgentErrorEvent",
    "Event",
    "EventSource",
    "MessageEvent",
    "ObservationEvent",
    "SystemPromptEvent",
    "TokenEvent",
    "event_json",
    "trajectory_events",
]
