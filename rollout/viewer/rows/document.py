"""A trajectory as blocks that fold: what it is, its prompt, its turns, and under each turn its tool calls. Pure.

Rows with fewer fields have fewer blocks: a dump of verl has an input and an output. Nothing of a row is left out: what
has no block of its own is in the last one, but for the lists of ids and logprobs, which the token view shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rollout.viewer.rows.columns import number_text
from rollout.viewer.rows.summary import KNOWN_FIELDS

MAX_BODY_CHARS = 200_000
"""Most characters of one block; a longer one is cut and says so."""
_FACTS = """
score reward_parts tool_rewards turn_rewards stop_reason cause state masked error gts turns attempts timings metrics
"""
_ORIGIN = "uid request_id index data_source where model sampling parent_id branch_point started_at"


@dataclass(frozen=True, slots=True)
class Block:
    """One part of a trajectory."""

    kind: str
    """`facts` of the trajectory, `prompt`, `turn`, `call`, `failed_call` or `other`; it decides the colour."""
    title: str
    body: str
    folded: bool = False
    """Says whether it starts folded."""


def blocks_of(record: Mapping[str, Any]) -> list[Block]:
    """The blocks of a row, in their order."""
    messages = _objects(record.get("messages"))
    score = "none" if record.get("score") is None else record["score"]
    masked = {"masked": "no part of any mean"} if record.get("masked") is True else {}
    facts = _lines({**record, "score": score, **masked}, _FACTS) + _tokens(record)
    blocks = [_block("facts", "trajectory", "\n".join(facts))]
    if origin := _lines(record, _ORIGIN):
        blocks.append(_block("facts", "origin", "\n".join(origin), folded=True))
    if messages:
        blocks += _conversation(messages, record)
    else:
        blocks += _plain(record)
    others = {key: value for key, value in record.items() if key not in KNOWN_FIELDS}
    if others:
        blocks.append(_block("other", "other fields", _json(others), folded=len(_json(others)) > 2000))
    return blocks


def _plain(record: Mapping[str, Any]) -> Iterable[Block]:
    for key, kind in (("input", "prompt"), ("output", "turn")):
        if key in record:
            yield _block(kind, key, _as_text(record[key]), folded=kind == "prompt")


def _conversation(messages: list[dict[str, Any]], record: Mapping[str, Any]) -> Iterable[Block]:
    calls = _objects(record.get("tool_calls"))
    prompt = _prompt_length(messages, record)
    for position, message in enumerate(messages[:prompt]):
        role = _as_text(message.get("role")) or "message"
        title = f"prompt: {role}"
        yield _block("prompt", title, _as_text(message.get("content")), folded=position < prompt - 1)
    turn = 0
    shown = 0
    for message in messages[prompt:]:
        role = _as_text(message.get("role")) or "message"
        if role == "assistant":
            turn += 1
            yield _block("turn", f"turn {turn}", _as_text(message.get("content")))
            of_turn = [call for call in calls if call.get("turn") == turn]
            shown += len(of_turn)
            yield from (_call(call, number) for number, call in enumerate(of_turn, 1))
        elif role != "tool" or not calls:  # answers stand with their calls
            yield _block("call", role, _as_text(message.get("content")))
    if shown < len(calls):
        rest = [call for call in calls if not (isinstance(call.get("turn"), int) and 1 <= call["turn"] <= turn)]
        yield from (_call(call, number) for number, call in enumerate(rest, 1))


def _prompt_length(messages: list[dict[str, Any]], record: Mapping[str, Any]) -> int:
    """Number of messages in the prompt: worked examples in it are turns of the assistant too, so the model's own turns
    are counted from the end."""
    turns = record.get("turns")
    said = [position for position, message in enumerate(messages) if message.get("role") == "assistant"]
    if isinstance(turns, int) and not isinstance(turns, bool) and 0 <= turns <= len(said):
        return said[-turns] if turns else len(messages)
    return said[0] if said else len(messages)


def _call(call: Mapping[str, Any], number: int) -> Block:
    outcome = _as_text(call.get("outcome"))
    title = f"call {number}: {_as_text(call.get('name')) or 'not parsed'}  {outcome}"
    for key, name in (("wait_s", "waited"), ("run_s", "ran")):
        if isinstance(call.get(key), int | float):
            title += f"  {name} {call[key]:.2f} s"
    if isinstance(call.get("reward"), int | float):
        title += f"  reward {_as_text(call['reward'])}"
    if call.get("truncated"):
        title += f"  cut from {call.get('total_bytes')} bytes"
    arguments = call.get("arguments")
    asked = _arguments(arguments) if isinstance(arguments, dict) else _as_text(call.get("raw"))
    answer = _as_text(call.get("text"))
    body = f"{asked}\n── answer ──\n{answer}" if answer else f"{asked}\n── no answer ──"
    return _block("call" if outcome == "ok" else "failed_call", title, body)


def _arguments(arguments: Mapping[str, Any]) -> str:
    """Texts as they are, under their names: code is to be read, not escaped."""
    if len(arguments) == 1 and all(isinstance(value, str) for value in arguments.values()):
        return str(next(iter(arguments.values())))
    parts = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else _json(value)
        parts.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(parts)


def _lines(record: Mapping[str, Any], names: str) -> list[str]:
    """A line for each of these fields that the row has."""
    known = [name for name in names.split() if record.get(name) not in (None, "", [], {})]
    return [f"{name:<12} {_on_a_line(record[name])}" for name in known]


def _tokens(record: Mapping[str, Any]) -> list[str]:
    """Lines about the lists of ids, which are in no block."""
    lists = {"prompt": "prompt_ids", "response": "response_ids"}
    counts = {title: len(record[key]) for title, key in lists.items() if isinstance(record.get(key), list)}
    if isinstance(record.get("response_mask"), list):
        counts["sampled"] = sum(1 for bit in record["response_mask"] if bit)
    versions = dict.fromkeys(_as_text(each.get("weight_version")) for each in _objects(record.get("segments")))
    earlier = len(_objects(record.get("earlier")))
    condensed = f"{earlier} earlier parts, whose tokens are not shown" if earlier else ""
    values = {"tokens": counts, "weights": ", ".join(filter(None, versions)), "condensed": condensed}
    return _lines(values, "tokens weights condensed")


def _on_a_line(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {_on_a_line(each)}" for name, each in value.items())
    return number_text(value) if isinstance(value, float) and abs(value) < 1e7 else _as_text(value)


def _block(kind: str, title: str, body: str, *, folded: bool = False) -> Block:
    body = body.replace("\r\n", "\n").expandtabs(4)
    if len(body) > MAX_BODY_CHARS:
        left = len(body) - MAX_BODY_CHARS
        body = f"{body[:MAX_BODY_CHARS]}\n… {left} more characters: export the row to read them"
    return Block(kind, " ".join(title.split("\n")), body, folded)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(each, dict) and isinstance(each.get("text"), str) for each in value):
        return "\n".join(each["text"] for each in value)  # content parts of a multimodal message
    return _json(value) if isinstance(value, dict | list) else str(value)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
