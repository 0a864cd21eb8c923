"""Writes a dump's trajectories as the OpenHands SDK's events, one trajectory a line.

    python -m examples.openhands_events out/20260101-120000/1.jsonl > events.jsonl

    the prompt:            SystemPromptEvent | MessageEvent ...
    a turn with calls:     ActionEvent x k, then ObservationEvent | AgentErrorEvent x k, then TokenEvent
    a turn without:        MessageEvent, then TokenEvent

A turn whose calls were not answered is a message. The SDK needs a class for each action: `BashAction` for `bash`.
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairbox.errors import FairboxError
from rollout.dump import parts_of, read_dump
from rollout.rewards.reasoning import split_reasoning

Fields = dict[str, Any]

_NAMESPACE = uuid.UUID("6d1c4a52-5d0c-4b8e-9a6c-0d2f8f0a7c11")
"""Arbitrary and fixed: the same trajectory has the same event ids everywhere."""
_OPENINGS = re.compile(r"(?:<[^<>\s]{1,60}>\s*){1,4}\Z")
"""Marks that open a call, at the end of the text before it."""
_NOT_RUN = ("malformed", "bad_arguments", "unknown_tool", "over_budget", "ended", "infra")


def events_of(record: Mapping[str, Any]) -> Iterator[Fields]:
    """Yields the events of one record of a dump, in order."""
    elapsed = 0.0
    for number, (at, event) in enumerate(_timed(record), 1):
        elapsed = max(elapsed, at or 0.0)  # times never go back
        time = datetime.datetime.fromtimestamp((record.get("started_at") or 0.0) + elapsed, datetime.UTC)
        yield {"id": _id(f"{record['request_id']}/{number}"), "timestamp": time.isoformat(), **event}


def _id(name: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, name))


def _timed(record: Mapping[str, Any]) -> Iterator[tuple[float | None, Fields]]:
    """Yields (seconds after the start, event)."""
    messages, turns, times = record["messages"], record.get("turns", 0), record.get("turn_records", ())
    said = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    sampled = said[len(said) - turns :] if turns else []
    for message in messages[: sampled[0]] if sampled else messages:
        yield None, _prompt(message)
    end = [*record["prompt_ids"], *record["response_ids"]]
    spans = [span for part in parts_of(record) for span in _spans(part)]
    spans += [(end, [])] * (turns - len(spans))
    for turn, (place, (prompt_ids, response_ids)) in enumerate(zip(sampled, spans, strict=False), 1):
        response = f"{record['request_id']}-{turn}"
        at = times[turn - 1] if turn <= len(times) else {}
        calls = [call for call in record["tool_calls"] if call["turn"] == turn]
        for event in _turn(messages[place]["content"], calls, response):
            yield at.get("sampled_s"), event
        for number, call in enumerate(calls, 1):
            yield at.get("answered_s"), _answer(call, f"{response}-{number}", record["error"])
        tokens = {"prompt_token_ids": prompt_ids, "response_token_ids": response_ids}
        yield at.get("sampled_s"), {"kind": "TokenEvent", "source": "agent", **tokens}


def _spans(part: Mapping[str, Any]) -> list[tuple[list[int], list[int]]]:
    """Returns (what the engine was given, what it sampled) for each turn."""
    ids, found, end = [*part["prompt_ids"], *part["response_ids"]], [], 0
    for kind, group in itertools.groupby(part["segments"], key=lambda segment: segment["kind"]):
        begin, end = end, end + sum(segment["length"] for segment in group)
        if kind == "sampled":
            found.append((ids[:begin], ids[begin:end]))
    return found


def _prompt(message: Mapping[str, Any]) -> Fields:
    if message["role"] == "system":
        system = {"system_prompt": _text(message["content"]), "tools": []}
        return {"kind": "SystemPromptEvent", "source": "agent", **system}
    source = "user" if message["role"] == "user" else "environment"
    return _message(source, message["role"], message["content"], None, None)


def _message(source: str, role: str, text: str, thought: str | None, response: str | None) -> Fields:
    message = {"role": role, "content": [_text(text)], "reasoning_content": thought}
    return {"kind": "MessageEvent", "source": source, "llm_message": message, "llm_response_id": response}


def _turn(text: str, calls: Sequence[Mapping[str, Any]], response: str) -> Iterator[Fields]:
    thought, said = split_reasoning(text)
    if not calls:
        yield _message("agent", "assistant", said, thought, response)
        return
    before = _OPENINGS.sub("", said.partition(calls[0]["raw"])[0]).strip()
    for number, call in enumerate(calls, 1):
        first, call_id, name, arguments = number == 1, f"{response}-{number}", call["name"], call["arguments"]
        written = call["raw"] if arguments is None else json.dumps(arguments)
        yield {
            "kind": "ActionEvent",
            "id": _id(call_id),
            "source": "agent",
            "thought": [_text(before)] if first and before else [],
            "reasoning_content": thought if first else None,
            "action": None if call["outcome"] in _NOT_RUN else {**arguments, "kind": _kind(name, "Action")},
            "tool_name": name,
            "tool_call_id": call_id,
            "tool_call": {"id": call_id, "name": name, "arguments": written, "origin": "completion"},
            "llm_response_id": response,
        }


def _answer(call: Mapping[str, Any], call_id: str, error: str | None) -> Fields:
    common: Fields = {"tool_name": call["name"], "tool_call_id": call_id}
    if call["outcome"] in _NOT_RUN:
        lost = f"the answer is lost: {error}" if call["outcome"] == "infra" else call["text"]
        return {"kind": "AgentErrorEvent", "source": "agent", **common, "error": lost}
    seen = {"content": [_text(call["text"])], "is_error": call["outcome"] != "ok"}
    common |= {"observation": {"kind": _kind(call["name"], "Observation"), **seen}, "action_id": _id(call_id)}
    return {"kind": "ObservationEvent", "source": "environment", **common}


def _text(text: str) -> Fields:
    return {"type": "text", "text": text}


def _kind(tool: str, suffix: str) -> str:
    """`LocalizationFinishAction` of `localization_finish`."""
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[^0-9A-Za-z]+", tool)) + suffix


def main(paths: Sequence[str]) -> int:
    """Entry point; 0 when everything was written."""
    try:
        for record in itertools.chain.from_iterable(read_dump(Path(path)) for path in paths):
            events = list(events_of(record))
            print(json.dumps({"trajectory_id": record["request_id"], "score": record["score"], "messages": events}))
    except FairboxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
