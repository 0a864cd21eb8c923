"""Facts of a row that lists, filters and groups need, taken once from a line, so that the line need not stay in memory.

`RowFacts` is the one table of them: where a fact is in a row, what filters call it, and its column. Invariants: any
JSON object makes a row, whatever its fields hold; what is missing or has another type is None or empty, never a guess.
Dumps of verl and of other trainers have fewer fields than fairbox's; their scalar fields that are not known here are
`extras`. It keeps no text of a trajectory.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from hashlib import blake2b
from typing import Any, TypeVar

__all__ = [
    "FIELDS",
    "KNOWN_FIELDS",
    "Field",
    "FieldKind",
    "RowFacts",
    "broken_row",
    "extra_names",
    "facts_of",
    "field_named",
    "parse_line",
    "row_texts",
    "sorted_by",
]

MAX_EXTRAS = 24
"""Further fields that are kept of a row."""
MAX_EXTRA_CHARS = 64
"""Longer texts are no facts: they are read with the row."""

_KNOWN = """
input output gts score step request_id uid index data_source where parent_id branch_point
reward_parts turn_rewards tool_rewards prompt_ids response_ids response_mask logprobs segments messages tool_calls
turns state stop_reason cause masked error attempts timings model sampling started_at turn_records metrics earlier
"""
KNOWN_FIELDS = frozenset(_KNOWN.split())
"""Fields with a place of their own; every other one is an extra."""

Record = Mapping[str, Any]
Value = float | str | None | tuple[str, ...]
T = TypeVar("T")


class FieldKind(StrEnum):
    """What can be asked of a field."""

    NUMBER = "number"
    """Compared by size."""
    TEXT = "text"
    """Compared whole."""
    FLAG = "flag"
    """`true` or `false`."""
    SET = "set"
    """Matches if one of its texts does."""
    READ = "read"
    """A text that is no fact: the row is read for it."""
    EXTRA = "extra"
    """A number or a text, as the dump has it."""


@dataclass(frozen=True, slots=True)
class Field:
    """One name by which rows are filtered, sorted and shown."""

    name: str
    kind: FieldKind
    help: str
    title: str = ""
    """The title of its column; empty: it has none."""
    width: int = 7
    attribute: str = ""
    """The attribute of RowFacts; empty if it is none."""

    def get(self, row: RowFacts) -> Value:
        """None where the row has no such value."""
        if self.kind is FieldKind.EXTRA:
            return row.extras.get(self.name)
        value: Value = getattr(row, self.attribute) if self.attribute else None
        if self.kind is FieldKind.FLAG:
            return str(bool(value)).lower()
        return None if value == "" else value


def _fact(
    help: str,
    read: Callable[[Record], Value] = lambda record: None,
    kind: FieldKind = FieldKind.NUMBER,
    *,
    name: str = "",
    title: str = "",
    width: int = 7,
) -> Any:
    """One fact: its help, how it is read from a row, and its column."""
    default = {FieldKind.NUMBER: None, FieldKind.SET: (), FieldKind.FLAG: False}.get(kind, "")
    return field(default=default, metadata={"field": (name, kind, help, title, width), "read": read})


def _text_fact(help: str, key: str, *, title: str = "", width: int = 16) -> Any:
    return _fact(help, lambda record: sys.intern(_text(record.get(key))), FieldKind.TEXT, title=title, width=width)


def _timing(help: str, *keys: str, title: str = "") -> Any:
    def read(record: Record) -> float | None:
        timings = record.get("timings")
        found = [_number(timings.get(key)) for key in keys] if isinstance(timings, dict) else []
        known = [number for number in found if number is not None]
        return sum(known) if known else None

    return _fact(help, read, title=title, width=8)


def _whole_fact(help: str, *keys: str, title: str = "", width: int = 7) -> Any:
    def read(record: Record) -> int | None:
        return next((_whole(record[key]) for key in keys if key in record), None)

    return _fact(help, read, title=title, width=width)


def _length_fact(help: str, key: str, *, title: str) -> Any:
    return _fact(help, lambda record: len(record[key]) if isinstance(record.get(key), list) else None, title=title)


@dataclass(frozen=True, slots=True)
class RowFacts:
    """One line of a dump. The order of its facts is that of their columns."""

    line: int = _fact("line of the file", title="line", width=6)
    """From 1."""
    offset: int = 0
    """Of its first byte in the file."""
    size: int = _fact("size of the line", name="bytes")
    """Bytes, without the line's end."""
    problem: str = _fact("true for a line that holds no row", lambda record: "", FieldKind.FLAG, name="broken")
    """Why it could not be read; empty for a whole row."""
    score: float | None = _fact("reward; none when masked", lambda record: _number(record.get("score")), title="score")
    """None when it is masked, or has no number; it may be NaN in dumps of others."""
    stop_reason: str = _text_fact("why it ended", "stop_reason", title="ended by", width=15)
    cause: str = _text_fact("who could have caused that: POLICY, TASK, INFRA", "cause", title="cause", width=6)
    turns: int | None = _whole_fact("turns of the assistant", "turns", "num_turns", title="turns", width=5)
    tool_calls: int | None = _length_fact("calls of tools", "tool_calls", title="calls")
    tool_errors: int | None = _fact("calls whose outcome is not ok", lambda record: _errors(record), title="failed")
    response_tokens: int | None = _length_fact("tokens after the prompt", "response_ids", title="tokens")
    total_s: float | None = _timing("seconds in all", "total_s", title="seconds")
    uid: str = _text_fact("its group", "uid", title="uid")
    logprob: float | None = _fact(
        "mean logprob of the sampled tokens", lambda record: _mean_logprob(record), title="logprob"
    )
    sampled_tokens: int | None = _fact("tokens with mask 1", lambda record: _sampled(record), title="sampled")
    prompt_tokens: int | None = _length_fact("tokens of the prompt", "prompt_ids", title="prompt")
    chars: int | None = _fact("characters of `output`", lambda record: len(_text(record.get("output"))), title="chars")
    engine_s: float | None = _timing("seconds of generation", "engine_s", title="engine s")
    tool_s: float | None = _timing("seconds in tools", "tool_run_s", title="tool s")
    wait_s: float | None = _timing("seconds in queues", "queue_s", "tool_wait_s", title="wait s")
    score_s: float | None = _timing("seconds of scoring, after all others", "score_s")
    attempts: int | None = _whole_fact("attempts, failed ones included", "attempts", title="tries", width=5)
    index: int | None = _whole_fact("position in the run", "index", title="index", width=6)
    request_id: str = _text_fact("its id", "request_id", title="request id", width=32)
    data_source: str = _text_fact("where the problem comes from", "data_source", title="source", width=14)
    masked: bool = _fact("true or false", lambda record: record.get("masked") is True, FieldKind.FLAG)
    outcomes: tuple[str, ...] = _fact(
        "outcome of one of its calls", lambda record: _of_calls(record, "outcome"), FieldKind.SET, name="outcome"
    )
    tools: tuple[str, ...] = _fact(
        "name of one of the tools it called", lambda record: _of_calls(record, "name"), FieldKind.SET, name="tool"
    )
    prompt_key: int = 0
    """A hash of `input`: rows of one prompt share it."""
    extras: Mapping[str, float | str] = field(default_factory=dict)


_TABLE = {each.name: each.metadata for each in fields(RowFacts) if each.metadata}
_READ = {
    "text": "everything below",
    "input": "the prompt",
    "output": "the response, tools' answers included",
    "calls": "the calls as they were written, and their answers",
    "gts": "the ground truth",
    "error": "what failed",
}


def _fields() -> Iterable[Field]:
    for attribute, metadata in _TABLE.items():
        name, kind, help, title, width = metadata["field"]
        yield Field(name or attribute, kind, help, title, width, attribute)
    for name, help in _READ.items():
        yield Field(name, FieldKind.READ, help)


FIELDS: Mapping[str, Field] = {each.name: each for each in _fields()}


def broken_row(line: int, offset: int, size: int, problem: str) -> RowFacts:
    """A line that holds no row."""
    return RowFacts(line, offset, size, problem)


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


def facts_of(record: Record, *, line: int, offset: int, size: int) -> RowFacts:
    """The facts of a parsed line."""
    found = {name: metadata["read"](record) for name, metadata in _TABLE.items()}
    found |= {"line": line, "offset": offset, "size": size, "extras": _extras(record)}
    return RowFacts(**found, prompt_key=_key(record.get("input")))


def field_named(name: str, extras: Iterable[str] = ()) -> Field | None:
    """The field of that name; `extras` are the further ones that the dump has."""
    if name in FIELDS:
        return FIELDS[name]
    return Field(name, FieldKind.EXTRA, "a field of this dump") if name in extras else None


def extra_names(rows: Iterable[RowFacts]) -> list[str]:
    """Names of the extras of these rows, in their order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.extras))


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


def sorted_by(rows: Sequence[T], get: Callable[[T], Value], *, descending: bool) -> list[T]:
    """Rows in the order of a value: numbers by size, before texts. Rows without a value, and NaN, come last either way;
    rows that are alike keep their order."""

    def key(row: T) -> tuple[bool, float, str]:
        value = get(row)
        value = " ".join(value) if isinstance(value, tuple) else value
        return (True, 0.0, value) if isinstance(value, str) else (False, float(value or 0), "")

    def known(row: T) -> bool:
        value = get(row)
        return value not in (None, (), "") and not (isinstance(value, float) and math.isnan(value))

    having = [row for row in rows if known(row)]
    return sorted(having, key=key, reverse=descending) + [row for row in rows if not known(row)]


def _extras(record: Record) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    parts = {
        f"{name}.{key}": value
        for name in ("reward_parts", "tool_rewards")
        for key, value in (record[name].items() if isinstance(record.get(name), dict) else ())
    }
    for key, value in (parts | {key: value for key, value in record.items() if key not in KNOWN_FIELDS}).items():
        number = _number(value) if isinstance(value, int | float) else None
        if number is not None:
            found[sys.intern(key)] = number
        elif isinstance(value, str) and len(value) <= MAX_EXTRA_CHARS:
            found[sys.intern(key)] = value
        if len(found) >= MAX_EXTRAS:
            break
    return found


def _of_calls(record: Record, key: str) -> tuple[str, ...]:
    return tuple(sys.intern(_text(call.get(key))) for call in _dicts(record.get("tool_calls")))


def _errors(record: Record) -> int | None:
    calls = record.get("tool_calls")
    return sum(outcome != "ok" for outcome in _of_calls(record, "outcome")) if isinstance(calls, list) else None


def _sampled(record: Record) -> int | None:
    mask = record.get("response_mask")
    return sum(1 for bit in mask if bit) if mask and isinstance(mask, list) else None


def _mean_logprob(record: Record) -> float | None:
    mask, logprobs = record.get("response_mask"), record.get("logprobs")
    if not isinstance(mask, list) or not isinstance(logprobs, list) or len(logprobs) != len(mask):
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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, dict):  # a content part of a multimodal message, a ground truth with fields
        value = list(value.values())
    return [text for each in value for text in _strings(each)] if isinstance(value, list) else []


def _key(value: Any) -> int:
    if not isinstance(value, str):
        return 0
    return int.from_bytes(blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
