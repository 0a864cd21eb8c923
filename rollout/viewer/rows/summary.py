"""Facts of a row that lists, filters and groups need, taken once from a line, so that the line need not stay in memory.

`RowSummary` is the one table of them: where a fact is in a row, what filters call it, and its column. Invariants: any
JSON object makes a row, whatever its fields hold; what is missing or has another type is None or empty, never a guess.
Dumps of verl and of other trainers have fewer fields than fairbox's; their scalar fields that are not known here are
`extras`. It keeps no text of a trajectory.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from rollout.viewer.rows.columns import Column, Kind, Value

MAX_EXTRAS = 24
"""Further fields that are kept of a row."""
MAX_EXTRA_CHARS = 64
"""Longer texts are no facts: they are read with the row."""
_LOOKED_AT = 1000
"""Rows that decide which columns and extras there are."""

_KNOWN = """
input output gts score step request_id uid index data_source where parent_id branch_point
reward_parts turn_rewards tool_rewards prompt_ids response_ids response_mask logprobs segments messages tool_calls
turns state stop_reason cause masked error attempts timings model sampling started_at turn_records metrics earlier
"""
KNOWN_FIELDS = frozenset(_KNOWN.split())
"""Fields with a place of their own; every other one is an extra."""

Record = Mapping[str, Any]


def _fact(
    help: str,
    read: Callable[[Record], Value],
    kind: Kind = "number",
    *,
    name: str = "",
    title: str = "",
    width: int = 7,
) -> Any:
    """One fact: its help, how it is read from a row, its column; a name if it isn't the attribute's."""
    return field(metadata={"column": (title, width, kind, help), "name": name, "read": read})


def _text(help: str, key: str, *, title: str = "", width: int = 16) -> Any:
    return _fact(help, lambda record: sys.intern(_as_text(record.get(key))), "text", title=title, width=width)


def _seconds(help: str, *keys: str, title: str = "") -> Any:
    def read(record: Record) -> float | None:
        timings = record.get("timings")
        found = [_number(timings.get(key)) for key in keys] if isinstance(timings, dict) else []
        known = [number for number in found if number is not None]
        return sum(known) if known else None

    return _fact(help, read, title=title, width=8)


def _count(help: str, *keys: str, title: str, width: int = 7) -> Any:
    """A whole number, or the length of a list."""

    def read(record: Record) -> int | None:
        value = next((record[key] for key in keys if key in record), None)
        return len(value) if isinstance(value, list) else _whole(value)

    return _fact(help, read, title=title, width=width)


@dataclass(frozen=True, slots=True)
class RowSummary:
    """One line of a dump. The order of its facts is that of their columns."""

    path: Path
    """The file, which is the step."""
    offset: int
    """Position of its first byte in the file."""
    problem: str
    """Why it could not be read; empty for a whole row."""
    prompt_key: int
    """A hash of `input`, which rows of one prompt share; 0 without one."""
    extras: Mapping[str, float | str]
    line: int = _fact("line of the file", lambda record: None, title="line", width=6)
    """From 1."""
    size: int = _fact("size of the line", lambda record: None, name="bytes")
    """Bytes, without the line's end."""
    score: float | None = _fact("reward; none when masked", lambda record: _number(record.get("score")), title="score")
    """None when it is masked, or has no number; it may be NaN in dumps of others."""
    stop_reason: str = _text("why it ended, or why it is broken", "stop_reason", title="ended by", width=15)
    cause: str = _text("who could have caused that: POLICY, TASK, INFRA", "cause", title="cause", width=6)
    turns: int | None = _count("turns of the assistant", "turns", "num_turns", title="turns", width=5)
    tool_calls: int | None = _count("calls of tools", "tool_calls", title="calls")
    tool_errors: int | None = _fact("calls whose outcome is not ok", lambda record: _errors(record), title="failed")
    response_tokens: int | None = _count("tokens after the prompt", "response_ids", title="tokens")
    total_s: float | None = _seconds("seconds in all", "total_s", title="seconds")
    uid: str = _text("its group", "uid", title="uid")
    logprob: float | None = _fact(
        "mean logprob of the sampled tokens", lambda record: _mean_logprob(record), title="logprob"
    )
    sampled_tokens: int | None = _fact("tokens with mask 1", lambda record: _sampled(record), title="sampled")
    prompt_tokens: int | None = _count("tokens of the prompt", "prompt_ids", title="prompt")
    chars: int | None = _fact("characters of `output`", lambda record: _length(record.get("output")), title="chars")
    engine_s: float | None = _seconds("seconds of generation", "engine_s", title="engine s")
    tool_s: float | None = _seconds("seconds in tools", "tool_run_s", title="tool s")
    wait_s: float | None = _seconds("seconds in queues", "queue_s", "tool_wait_s", title="wait s")
    score_s: float | None = _seconds("seconds of scoring, after all others", "score_s")
    attempts: int | None = _count("attempts, failed ones included", "attempts", title="tries", width=5)
    index: int | None = _count("position in the run", "index", title="index", width=6)
    request_id: str = _text("its id", "request_id", title="request id", width=32)
    data_source: str = _text("where the problem comes from", "data_source", title="source", width=14)
    masked: bool = _fact("true or false", lambda record: record.get("masked") is True, "flag")
    outcomes: tuple[str, ...] = _fact(
        "outcome of one of its calls", lambda record: _of_calls(record, "outcome"), "text", name="outcome"
    )
    tools: tuple[str, ...] = _fact(
        "name of one of the tools it called", lambda record: _of_calls(record, "name"), "text", name="tool"
    )


_TABLE = {each.name: each.metadata for each in fields(RowSummary) if each.metadata}
_READ = {
    "text": "everything below",
    "input": "the prompt",
    "output": "the response, tools' answers included",
    "calls": "the calls as they were written, and their answers",
    "gts": "the ground truth",
    "error": "what failed",
}


def _get(attribute: str, row: RowSummary) -> Value:
    value: Value | bool = getattr(row, attribute)
    return str(value).lower() if isinstance(value, bool) else None if value in ("", ()) else value


def _columns() -> Iterable[Column[RowSummary]]:
    for attribute, fact in _TABLE.items():
        title, width, kind, help = fact["column"]
        yield Column(title, width, partial(_get, attribute), name=fact["name"] or attribute, kind=kind, help=help)
    broken = "true for a line that holds no row"
    yield Column("", 0, lambda row: str(bool(row.problem)).lower(), name="broken", kind="flag", help=broken)
    for name, help in _READ.items():
        yield Column("", 0, lambda row: None, name=name, kind="read", help=help)


FIELDS: Mapping[str, Column[RowSummary]] = {each.name: each for each in _columns()}
"""Fields that filters and columns show, by name."""


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


def facts_of(record: Record | str, path: Path, *, line: int, offset: int, size: int) -> RowSummary:
    """The facts of a parsed line, or of one that holds no row, and why."""
    problem = record if isinstance(record, str) else ""
    row: Record = {"stop_reason": f"broken: {problem}"} if isinstance(record, str) else record
    found = {name: fact["read"](row) for name, fact in _TABLE.items()} | {"line": line, "size": size}
    prompt = row.get("input")
    return RowSummary(path, offset, problem, hash(prompt) if isinstance(prompt, str) else 0, _extras(row), **found)


def field_named(name: str, extras: Iterable[str] = ()) -> Column[RowSummary] | None:
    """The field of that name; `extras` are the further ones that the dump has."""
    if name not in FIELDS and name in extras:
        width = max(7, min(20, len(name)))
        return Column(name, width, lambda row: row.extras.get(name), name=name, kind="extra")
    return FIELDS.get(name)


def row_columns(rows: Sequence[RowSummary]) -> list[Column[RowSummary]]:
    """Columns that have a value in the first rows, those of extras last."""
    rows = rows[:_LOOKED_AT]
    extras = extra_names(rows)
    found = [field for name in (*FIELDS, *extras) if (field := field_named(name, extras)) is not None and field.title]
    always = ("line", "score")
    return [each for each in found if each.name in always or any(each.get(row) is not None for row in rows)]


def extra_names(rows: Sequence[RowSummary]) -> list[str]:
    """Names of the extras of the first rows, in their order of appearance; one can't take the place of a field."""
    return list(dict.fromkeys(name for row in rows[:_LOOKED_AT] for name in row.extras if name not in FIELDS))


def row_texts(record: Record, name: str = "text") -> list[str]:
    """The texts of a row that a READ field stands for."""
    calls = _strings([[call.get("raw"), call.get("text")] for call in _dicts(record.get("tool_calls"))])
    if name == "calls":
        return calls
    if name != "text":
        return _strings(record.get(name))
    messages = _strings([message.get("content") for message in _dicts(record.get("messages"))])
    plain = [record.get(key) for key in ("input", "output", "gts", "error")]
    return _strings(plain) + messages + calls + _strings([record.get("uid"), record.get("request_id")])


def _extras(record: Record) -> dict[str, float | str]:
    parts = [(name, record[name]) for name in ("reward_parts", "tool_rewards") if isinstance(record.get(name), dict)]
    found = {f"{name}.{key}": value for name, values in parts for key, value in values.items()}
    found |= {key: value for key, value in record.items() if key not in KNOWN_FIELDS}
    kept = (
        (sys.intern(key), value)
        for key, value in found.items()
        if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= MAX_EXTRA_CHARS)
    )
    return dict(itertools.islice(kept, MAX_EXTRAS))


def _of_calls(record: Record, key: str) -> tuple[str, ...]:
    return tuple(sys.intern(_as_text(call.get(key))) for call in _dicts(record.get("tool_calls")))


def _errors(record: Record) -> int | None:
    calls = record.get("tool_calls")
    return sum(outcome != "ok" for outcome in _of_calls(record, "outcome")) if isinstance(calls, list) else None


def _sampled(record: Record) -> int | None:
    mask = record.get("response_mask")
    return sum(map(bool, mask)) if mask and isinstance(mask, list) else None


def _mean_logprob(record: Record) -> float | None:
    mask, logprobs = record.get("response_mask"), record.get("logprobs")
    if not isinstance(mask, list) or not isinstance(logprobs, list) or len(logprobs) != len(mask):
        return None
    try:
        sampled = list(map(float, itertools.compress(logprobs, mask)))
        total = math.fsum(sampled)
    except (TypeError, ValueError, OverflowError):  # ValueError also of infinities of both signs
        return None
    return total / len(sampled) if sampled and math.isfinite(total) else None


def _number(value: Any) -> float | None:
    """Numbers and booleans; texts that are numbers, as some trainers write them."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _whole(value: Any) -> int | None:
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, str) else None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, dict):  # a content part of a multimodal message, a ground truth with fields
        value = list(value.values())
    return [text for each in value for text in _strings(each)] if isinstance(value, list) else []
