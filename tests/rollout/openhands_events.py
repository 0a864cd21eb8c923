"""Reads events as JSON from standard input with the models of the OpenHands SDK: `openhands_events.py < events.json`.

A program of its own, because the SDK needs Python 3.12 and packages of its own. Prints the final response that the SDK
finds, and the roles of the messages that it would send to a model.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from openhands.sdk import Action, Observation  # type: ignore[import-not-found]
from openhands.sdk.conversation.response_utils import get_agent_final_response  # type: ignore[import-not-found]
from openhands.sdk.event import Event, LLMConvertibleEvent  # type: ignore[import-not-found]


class EchoAction(Action):  # type: ignore[misc]
    """Action of the tool in the events."""

    text: str


class EchoObservation(Observation):  # type: ignore[misc]
    """Its answer."""


def main() -> None:
    """Exits with 1, and says why, where an event is refused."""
    given: list[dict[str, Any]] = json.load(sys.stdin)
    events = [Event.model_validate(each) for each in given]
    kinds = [type(event).__name__ for event in events]
    assert kinds == [each["kind"] for each in given], kinds
    talking = [event for event in events if isinstance(event, LLMConvertibleEvent)]
    messages = LLMConvertibleEvent.events_to_messages(talking)
    found = {
        "final": get_agent_final_response(events),
        "roles": [message.role for message in messages],
        "calls": [len(message.tool_calls or ()) for message in messages],
        "actions": [type(event.action).__name__ for event in events if hasattr(event, "action")],
    }
    sys.stdout.write(json.dumps(found) + "\n")


main()
