"""What a list of rows shows of each: small facts, taken once from a line, so that the line need not stay in memory.

Invariants: any JSON object makes a row, whatever its fields hold; what is missing or has another type is None or empty,
never a guess. Dumps of verl and of other trainers have fewer fields than fairbox's; their scalar fields that are not
known here are `extras`. It keeps no text of a trajectory.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

__all__ = ["KNOWN_FIELDS", "RowFacts", "broken_row", "facts_of", "parse_line"]

MAX_EXTRAS = 24
"""Further fields that are kept of a row."""
MAX_EXTRA_CHARS = 64
"""Longer texts are no facts: they are read with the row."""

KNOWN_FIELDS = frozenset(
    {
        "input",
        "output",
        "gts",
        "score",
        "step",
        "request_id",
        "uid",
        "index",
        "data_source",
        "where",
        "parent_id",
        "branch_point",
        "reward_parts",
        "turn_rewards",
        "tool_rewards",
        "prompt_ids",
        "response_ids",
        "response_mask",
        "logprobs",
        "segments",
        "messages",
        "tool_calls",
        "turns",
        "state",
        "stop_reason",
        "cause",
        "masked",
        "error",
        "attempts",
        "timings",
        "model",
        "sampling",
        "started_at",
        "turn_records",
        "metrics",
        "earlier",
    }
)
"""Fields with a place of their own; every other one is an extra."""

Scalar = float | str


@dataclass(frozen=True, slots=True)
class RowFacts:
    """One line of a dump."""

    line: int
    """From 1."""
    offset: int
    """Of its first byte in the file."""
    size: int
    """Bytes, without the line's end."""
    problem: str = ""
    """Why it could not be read; empty for a whole row."""
    score: float | None = None
    """None when it is masked, or has no number; it may be NaN in dumps of others."""
    turns: int | None = None
    tool_calls: int | None = None
    tool_errors: int | None = None
    """Calls whose outcome is another than `ok`."""
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    sampled_tokens: int | None = None
    logprob: float | None = None
    """Mean over the sampled tokens."""
    chars: int = 0
    """Length of `output`."""
    stop_reason: str = ""
    cause: str = ""
    masked: bool = False
    uid: str = ""
    request_id: str = ""
    index: int | None = None
    data_source: str = ""
    attempts: int | None = None
    total_s: float | None = None
    engine_s: float | None = None
    tool_s: float | None = None
    """In tools, their queues left out."""
    score_s: float | None = None
    wait_s: float | None = None
    """In the queues of engine and tools."""
    outcomes: tuple[str, ...] = ()
    """Outcomes of the tool calls, in order."""
    tools: tuple[str, ...] = ()
    """Names of the tools that were called, in order."""
    prompt_key: int = 0
    """A hash of `input`: rows of one prompt share it."""
    extras: Mapping[str, Scalar] = field(default_factory=dict)


def broken_row(line: int, offset: int, size: int, problem: str) -> RowFacts:
    """A line that holds no row."""
    return RowFacts(line, offset, size, problem=problem)


def parse_line(data: bytes) -> dict[str, Any] | str:
    """The object of a line, or what is wrong with it."""
    try:
        record = json.loads(data)
    except UnicodeDecodeError:
        return "is not UTF-8"
    except RecursionError:
        return "is nested too deeply"
    except ValueError as error:
        return f"is not JSON: {error}"
    return record if isinstance(record, dict) else f"is a {type(record).__name__}, must be an object"


def facts_of(record: Mapping[str, Any], *, line: int, offset: int, size: int) -> RowFacts:
    """The facts of a parsed line."""
    calls = [call for call in _list(record.get("tool_calls")) if isinstance(call, dict)]
    outcomes = tuple(_name(call.get("outcome")) for call in calls)
    mask = _list(record.get("response_mask"))
    sampled = sum(1 for bit in mask if bit) if mask else None
    timings = _object(record.get("timings"))
    has_calls = isinstance(record.get("tool_calls"), list)
    return RowFacts(
        line=line,
        offset=offset,
        size=size,
        score=_number(record.get("score")),
        turns=_whole(record.get("turns", record.get("num_turns"))),
        tool_calls=len(calls) if has_calls else None,
        tool_errors=sum(outcome != "ok" for outcome in outcomes) if has_calls else None,
        prompt_tokens=_length(record.get("prompt_ids")),
        response_tokens=_length(record.get("response_ids")),
        sampled_tokens=sampled,
        logprob=_mean_logprob(_list(record.get("logprobs")), mask),
        chars=len(_text(record.get("output"))),
        stop_reason=_name(record.get("stop_reason")),
        cause=_name(record.get("cause")),
        masked=record.get("masked") is True,
        uid=_name(record.get("uid")),
        request_id=_text(record.get("request_id")),
        index=_whole(record.get("index")),
        data_source=_name(record.get("data_source")),
        attempts=_whole(record.get("attempts")),
        total_s=_number(timings.get("total_s")),
        engine_s=_number(timings.get("engine_s")),
        tool_s=_number(timings.get("tool_run_s")),
        score_s=_number(timings.get("score_s")),
        wait_s=_sum(_number(timings.get("queue_s")), _number(timings.get("tool_wait_s"))),
        outcomes=outcomes,
        tools=tuple(_name(call.get("name")) for call in calls),
        prompt_key=_key(record.get("input")),
        extras=_extras(record),
    )


def _extras(record: Mapping[str, Any]) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    groups = ((f"{name}.", _object(record.get(name))) for name in ("reward_parts", "tool_rewards"))
    for prefix, fields in (*groups, ("", {key: value for key, value in record.items() if key not in KNOWN_FIELDS})):
        for key, value in fields.items():
            if len(found) >= MAX_EXTRAS:
                return found
            number = _number(value) if isinstance(value, int | float) else None
            if number is not None:
                found[sys.intern(prefix + key)] = number
            elif isinstance(value, str) and len(value) <= MAX_EXTRA_CHARS:
                found[sys.intern(prefix + key)] = value
    return found


def _mean_logprob(logprobs: list[Any], mask: list[Any]) -> float | None:
    if not mask or len(logprobs) != len(mask):
        return None
    try:
        sampled = [float(logprob) for logprob, bit in zip(logprobs, mask, strict=True) if bit]
    except (TypeError, ValueError):
        return None
    return math.fsum(sampled) / len(sampled) if sampled and all(map(math.isfinite, sampled)) else None


def _number(value: Any) -> float | None:
    """Numbers and booleans; texts that are numbers, as some trainers write them."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value)


def _sum(*numbers: float | None) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _name(value: Any) -> str:
    """A text that many rows share."""
    return sys.intern(_text(value))


def _key(value: Any) -> int:
    if not isinstance(value, str):
        return 0
    return int.from_bytes(blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
