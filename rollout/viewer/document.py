"""A trajectory as blocks that fold: what it is, its prompt, its turns, and under each turn its tool calls. Pure.

Rows with fewer fields have fewer blocks: a dump of verl has an input and an output. Nothing of a row is left out: what
has no block of its own is in the last one, but for the lists of ids and logprobs, which the token view shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from rollout.viewer.facts import KNOWN_FIELDS

__all__ = ["MAX_BODY_CHARS", "Block", "BlockKind", "blocks_of"]

MAX_BODY_CHARS = 200_000
"""Of one block; a longer one is cut and says so."""
_COUNTED = ("num_", "total_", "avg_", "tokens", "steps", "wall_clock_duration", "tool_calls_by_turn")
"""Beginnings of metrics that are among the counts and times already."""


class BlockKind(StrEnum):
    """What a block is, which decides its colour."""

    FACTS = "facts"
    """How the trajectory went."""
    PROMPT = "prompt"
    """A message of the prompt."""
    TURN = "turn"
    """What the model said."""
    CALL = "call"
    """A tool call and its answer."""
    FAILED_CALL = "failed_call"
    """A tool call whose outcome is not ok."""
    OTHER = "other"
    """Further fields."""


@dataclass(frozen=True, slots=True)
class Block:
    """One part of a trajectory."""

    kind: BlockKind
    title: str
    body: str
    folded: bool = False
    """Whether it starts folded."""


def blocks_of(record: Mapping[str, Any]) -> list[Block]:
    """The blocks of a row, in their order."""
    messages = [each for each in _list(record.get("messages")) if isinstance(each, dict)]
    blocks = [_block(BlockKind.FACTS, "trajectory", _facts(record))]
    if origin := _origin(record):
        blocks.append(_block(BlockKind.FACTS, "origin", origin, folded=True))
    if messages:
        blocks += _conversation(messages, record)
    else:
        blocks += _plain(record)
    others = {key: value for key, value in record.items() if key not in KNOWN_FIELDS}
    if others:
        blocks.append(_block(BlockKind.OTHER, "other fields", _json(others), folded=len(_json(others)) > 2000))
    return blocks


def _plain(record: Mapping[str, Any]) -> Iterable[Block]:
    for key, kind in (("input", BlockKind.PROMPT), ("output", BlockKind.TURN)):
        if key in record:
            yield _block(kind, key, _as_text(record[key]), folded=kind is BlockKind.PROMPT)


def _conversation(messages: list[dict[str, Any]], record: Mapping[str, Any]) -> Iterable[Block]:
    calls = [each for each in _list(record.get("tool_calls")) if isinstance(each, dict)]
    prompt = _prompt_length(messages, record)
    for position, message in enumerate(messages[:prompt]):
        role = _as_text(message.get("role")) or "message"
        title = f"prompt: {role}"
        yield _block(BlockKind.PROMPT, title, _as_text(message.get("content")), folded=position < prompt - 1)
    turn = 0
    shown = 0
    for message in messages[prompt:]:
        role = _as_text(message.get("role")) or "message"
        if role == "assistant":
            turn += 1
            yield _block(BlockKind.TURN, f"turn {turn}", _as_text(message.get("content")))
            of_turn = [call for call in calls if call.get("turn") == turn]
            shown += len(of_turn)
            yield from (_call(call, number) for number, call in enumerate(of_turn, 1))
        elif role != "tool" or not calls:  # answers stand with their calls
            yield _block(BlockKind.CALL, role, _as_text(message.get("content")))
    if shown < len(calls):
        rest = [call for call in calls if not (isinstance(call.get("turn"), int) and 1 <= call["turn"] <= turn)]
        yield from (_call(call, number) for number, call in enumerate(rest, 1))


def _prompt_length(messages: list[dict[str, Any]], record: Mapping[str, Any]) -> int:
    """How many messages are the prompt's: worked examples in it are turns of the assistant too, so those that the model
    said are counted from the end."""
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
    return _block(BlockKind.CALL if outcome == "ok" else BlockKind.FAILED_CALL, title, body)


def _arguments(arguments: Mapping[str, Any]) -> str:
    """Texts as they are, under their names: code is to be read, not escaped."""
    if len(arguments) == 1 and all(isinstance(value, str) for value in arguments.values()):
        return str(next(iter(arguments.values())))
    parts = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else _json(value)
        parts.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(parts)


def _facts(record: Mapping[str, Any]) -> str:
    score, turns = record.get("score"), _list(record.get("turn_rewards"))
    ended = [_as_text(record.get(key)) for key in ("stop_reason", "cause", "state") if record.get(key)]
    if ended and record.get("masked") is True:
        ended.append("masked: no part of any mean")
    counts = {key: record[key] for key in ("turns", "attempts", "index") if isinstance(record.get(key), int)}
    timings = {key.removesuffix("_s"): f"{_seconds(value)} s" for key, value in _dict(record.get("timings")).items()}
    metrics = {key: value for key, value in _dict(record.get("metrics")).items() if not key.startswith(_COUNTED)}
    earlier = len(_list(record.get("earlier")))
    lines = [
        _line("score", "none" if score is None else score, _dict(record.get("reward_parts"))),
        _line("of tools", "", _dict(record.get("tool_rewards"))),
        _line("of turns", "", dict(enumerate(turns, 1)) if any(turns) else {}),
        _line("ended by", "  ".join(ended)),
        _line("error", record.get("error")),
        _line("ground truth", record.get("gts")),
        _line("tokens", "", _tokens(record)),
        _line("weights", ", ".join(_versions(record))),
        _line("counts", "", counts),
        _line("time", "", timings),
        _line("metrics", "", metrics),
        _line("condensed", f"{earlier} earlier parts, whose tokens are not shown" if earlier else ""),
    ]
    return "\n".join(filter(None, lines))


def _origin(record: Mapping[str, Any]) -> str:
    titles = {"group": "uid", "request id": "request_id", "source": "data_source", "from": "where", "model": "model"}
    sampling = {key: json.dumps(value) for key, value in _dict(record.get("sampling")).items()}
    lines = [_line(title, record.get(key)) for title, key in titles.items()]
    return "\n".join(filter(None, [*lines, _line("sampling", "", sampling)]))


def _tokens(record: Mapping[str, Any]) -> dict[str, int]:
    lists = {"prompt": "prompt_ids", "response": "response_ids"}
    counts = {title: len(record[key]) for title, key in lists.items() if isinstance(record.get(key), list)}
    mask = record.get("response_mask")
    return counts | ({"sampled": sum(1 for bit in mask if bit)} if isinstance(mask, list) else {})


def _versions(record: Mapping[str, Any]) -> list[str]:
    segments = [each for each in _list(record.get("segments")) if isinstance(each, dict)]
    return list(filter(None, dict.fromkeys(_as_text(each.get("weight_version")) for each in segments)))


def _line(title: str, value: Any, pairs: Mapping[Any, Any] = MappingProxyType({})) -> str:
    """A value, and names with theirs; empty where there is nothing to say."""
    texts = [_as_text(value), *(f"{name} {_as_text(each)}" for name, each in pairs.items())]
    text = "  ".join(filter(None, texts))
    return f"{title:<12} {text}" if text else ""


def _block(kind: BlockKind, title: str, body: str, *, folded: bool = False) -> Block:
    body = body.replace("\r\n", "\n").expandtabs(4)
    if len(body) > MAX_BODY_CHARS:
        left = len(body) - MAX_BODY_CHARS
        body = f"{body[:MAX_BODY_CHARS]}\n… {left} more characters: export the row to read them"
    return Block(kind, " ".join(title.split("\n")), body, folded)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _seconds(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else "-"


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
