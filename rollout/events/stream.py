"""A trajectory as a stream of events. Pure, and the same for the same trajectory.

    the prompt:            SystemPromptEvent | MessageEvent ...
    a turn with calls:     ActionEvent x k, then ObservationEvent | AgentErrorEvent x k, then TokenEvent
    a turn without:        MessageEvent, then TokenEvent

All events of a turn that the model caused share its `llm_response_id`. There is one TokenEvent for each turn, one
ActionEvent for each call that was answered. A turn whose calls were not answered, because a limit was reached, is a
message with its text as it stands. Where the conversation was condensed, a TokenEvent's prompt is the condensed one.
"""

from __future__ import annotations

import datetime
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from rollout.engines.base import FinishReason
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
from rollout.loop.results import ToolCallRecord, TrajectoryResult, TurnRecord
from rollout.reasoning import split_reasoning
from rollout.tokens.tokenizer import Message
from rollout.tokens.trajectory import Trajectory
from rollout.tokens.turn_spans import TurnSpan, turn_spans
from rollout.tools.base import ToolOutcome

__all__ = ["trajectory_events"]

_NAMESPACE = uuid.UUID("6d1c4a52-5d0c-4b8e-9a6c-0d2f8f0a7c11")
"""Arbitrary and fixed: the same trajectory has the same event ids everywhere."""
_OPENING = re.compile(r"<[^<>\s]{1,60}>\s*\Z")
"""A mark that opens a call, at the end of the text before it."""
_MOST_OPENINGS = 4
"""Formats open a call with up to two."""


def trajectory_events(result: TrajectoryResult) -> Iterator[Event]:
    """Its events in order.

    Where the trajectory has no `turn_records`, every event has the time of its start, and finish reasons are told from
    the last id of each turn: `stop` for one of its stop tokens, else `length`.
    """
    return iter(_Stream(result))


class _Stream:
    def __init__(self, result: TrajectoryResult) -> None:
        self._result = result
        self._number = 0
        self._elapsed = 0.0
        """Of the last event, since times never go back."""

    def __iter__(self) -> Iterator[Event]:
        result = self._result
        prompt, turns = _parted(result.messages, result.turns)
        for message in prompt:
            yield self._prompt(message)
        spans = [(part, span) for part in result.parts for span in turn_spans(part)]
        end = len(result.trajectory.ids)
        none = (result.trajectory, TurnSpan(end, end, ()))
        for number, text in enumerate(turns, 1):
            calls = [call for call in result.tool_calls if call.turn == number]
            record = result.turn_records[number - 1] if number <= len(result.turn_records) else None
            yield from self._said(number, text, calls, record)
            part, span = spans[number - 1] if number <= len(spans) else none
            yield self._tokens(number, part, span, record)

    def _base(self, source: EventSource, elapsed: float | None = None) -> dict[str, Any]:
        """Id, time and source of the next event."""
        self._number += 1
        self._elapsed = max(self._elapsed, elapsed or 0.0)
        at = datetime.datetime.fromtimestamp((self._result.started_at or 0.0) + self._elapsed, datetime.UTC)
        event_id = uuid.uuid5(_NAMESPACE, f"{self._result.trajectory_id}/{self._number}")
        return {"id": str(event_id), "timestamp": at.isoformat(), "source": source}

    def _response_id(self, turn: int) -> str:
        return f"{self._result.trajectory_id}-{turn}"

    def _prompt(self, message: Message) -> Event:
        role, text = message["role"], message["content"]
        if role == "system":
            return SystemPromptEvent(**self._base(EventSource.AGENT), text=text)
        source = EventSource.USER if role == "user" else EventSource.ENVIRONMENT
        return MessageEvent(**self._base(source), role=role, text=text)

    def _said(
        self, turn: int, text: str, calls: Sequence[ToolCallRecord], record: TurnRecord | None
    ) -> Iterator[Event]:
        sampled = None if record is None else record.sampled_s
        reasoning, said = split_reasoning(text)
        if not calls:
            yield MessageEvent(
                **self._base(EventSource.AGENT, sampled),
                role="assistant",
                text=said,
                reasoning_content=reasoning,
                llm_response_id=self._response_id(turn),
            )
            return
        actions = []
        for number, call in enumerate(calls):
            first = number == 0
            action = ActionEvent(
                **self._base(EventSource.AGENT, sampled),
                thought=_before(said, call.raw) if first else "",
                reasoning_content=reasoning if first else None,
                tool_name=call.name,
                tool_call_id=f"call-{turn}-{number + 1}",
                arguments=call.arguments if call.outcome.ran else None,
                written=call.raw if call.arguments is None else json.dumps(call.arguments),
                llm_response_id=self._response_id(turn),
            )
            actions.append(action)
            yield action
        for action, call in zip(actions, calls, strict=True):
            yield self._answer(action, call, None if record is None else record.answered_s)

    def _answer(self, action: ActionEvent, call: ToolCallRecord, elapsed: float | None) -> Event:
        if not call.outcome.ran:
            lost = call.outcome is ToolOutcome.INFRA
            return AgentErrorEvent(
                **self._base(EventSource.AGENT, elapsed),
                tool_name=call.name,
                tool_call_id=action.tool_call_id,
                error=f"the answer is lost: {self._result.error}" if lost else call.text,
            )
        return ObservationEvent(
            **self._base(EventSource.ENVIRONMENT, elapsed),
            tool_name=call.name,
            tool_call_id=action.tool_call_id,
            action_id=action.id,
            text=call.text,
            is_error=call.outcome is not ToolOutcome.OK,
        )

    def _tokens(self, turn: int, part: Trajectory, span: TurnSpan, record: TurnRecord | None) -> TokenEvent:
        ids, before = part.ids, len(part.prompt_ids)
        response = ids[span.start : span.end]
        ended = bool(response) and response[-1] in self._result.sampling.stop_token_ids
        return TokenEvent(
            **self._base(EventSource.AGENT, None if record is None else record.sampled_s),
            llm_response_id=self._response_id(turn),
            prompt_token_ids=ids[: span.start],
            response_token_ids=response,
            logprobs=part.logprobs[span.start - before : span.end - before],
            weight_versions=span.weight_versions,
            finish_reason=record.finish if record is not None else _guessed(ended),
        )


def _guessed(ended: bool) -> FinishReason:
    return FinishReason.STOP if ended else FinishReason.LENGTH


def _parted(messages: Sequence[Message], turns: int) -> tuple[Sequence[Message], list[str]]:
    """(the prompt, the texts of the turns): the last `turns` messages of the assistant are the turns."""
    said = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    sampled = said[len(said) - turns :] if turns else []
    return messages[: sampled[0]] if sampled else messages, [messages[place]["content"] for place in sampled]


def _before(text: str, raw: str) -> str:
    """What stands before a call, without the marks that open it."""
    head = text.partition(raw)[0] if raw else text
    for _ in range(_MOST_OPENINGS):
        if (mark := _OPENING.search(head, max(0, len(head) - 100))) is None:
            break
        head = head[: mark.start()]
    return head.strip()
