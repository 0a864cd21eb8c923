"""The names by which rows are filtered, sorted and shown, and what each name means.

A field is a number, a text, a set of texts, or a text of the row itself, which has to be read from the file. Fields of
a dump that are not known here are extras and go by their own names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rollout.viewer.facts import RowFacts

__all__ = ["FIELDS", "Field", "FieldKind", "extra_names", "field_named", "row_texts", "sorted_rows"]


class FieldKind(StrEnum):
    """What can be asked of a field."""

    NUMBER = "number"
    """Compared by size."""
    TEXT = "text"
    """Compared whole."""
    SET = "set"
    """Matches if one of its texts does."""
    READ = "read"
    """A text that is no fact: the row is read for it."""
    EXTRA = "extra"
    """A number or a text, as the dump has it."""


Value = float | str | None | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """One name."""

    name: str
    kind: FieldKind
    help: str
    get: Callable[[RowFacts], Value] = lambda facts: None
    """None where the row has no such value."""


def _numbers() -> Iterable[Field]:
    def field(name: str, help: str, get: Callable[[RowFacts], float | None]) -> Field:
        return Field(name, FieldKind.NUMBER, help, get)

    yield field("line", "line of the file", lambda row: row.line)
    yield field("score", "reward; none when masked", lambda row: row.score)
    yield field("turns", "turns of the assistant", lambda row: row.turns)
    yield field("tool_calls", "calls of tools", lambda row: row.tool_calls)
    yield field("tool_errors", "calls whose outcome is not ok", lambda row: row.tool_errors)
    yield field("prompt_tokens", "tokens of the prompt", lambda row: row.prompt_tokens)
    yield field("response_tokens", "tokens after the prompt", lambda row: row.response_tokens)
    yield field("sampled_tokens", "tokens with mask 1", lambda row: row.sampled_tokens)
    yield field("logprob", "mean logprob of the sampled tokens", lambda row: row.logprob)
    yield field("chars", "characters of `output`", lambda row: row.chars)
    yield field("attempts", "attempts, failed ones included", lambda row: row.attempts)
    yield field("total_s", "seconds in all", lambda row: row.total_s)
    yield field("engine_s", "seconds of generation", lambda row: row.engine_s)
    yield field("tool_s", "seconds in tools", lambda row: row.tool_s)
    yield field("score_s", "seconds of scoring, after all others", lambda row: row.score_s)
    yield field("wait_s", "seconds in queues", lambda row: row.wait_s)
    yield field("index", "position in the run", lambda row: row.index)
    yield field("bytes", "size of the line", lambda row: row.size)


def _texts() -> Iterable[Field]:
    def field(name: str, help: str, get: Callable[[RowFacts], str]) -> Field:
        return Field(name, FieldKind.TEXT, help, lambda row: get(row) or None)

    yield field("stop_reason", "why it ended", lambda row: row.stop_reason)
    yield field("cause", "who could have caused that: POLICY, TASK, INFRA", lambda row: row.cause)
    yield field("uid", "its group", lambda row: row.uid)
    yield field("request_id", "its id", lambda row: row.request_id)
    yield field("data_source", "where the problem comes from", lambda row: row.data_source)
    yield field("masked", "true or false", lambda row: str(row.masked).lower())
    yield field("broken", "true for a line that holds no row", lambda row: str(bool(row.problem)).lower())


_OTHERS = (
    Field("outcome", FieldKind.SET, "outcome of one of its calls", lambda row: row.outcomes),
    Field("tool", FieldKind.SET, "name of one of the tools it called", lambda row: row.tools),
    Field("text", FieldKind.READ, "everything below"),
    Field("input", FieldKind.READ, "the prompt"),
    Field("output", FieldKind.READ, "the response, tools' answers included"),
    Field("calls", FieldKind.READ, "the calls as they were written, and their answers"),
    Field("gts", FieldKind.READ, "the ground truth"),
    Field("error", FieldKind.READ, "what failed"),
)

FIELDS: Mapping[str, Field] = {field.name: field for field in (*_numbers(), *_texts(), *_OTHERS)}


def field_named(name: str, extras: Iterable[str] = ()) -> Field | None:
    """The field of that name; `extras` are the further ones that the dump has."""
    if name in FIELDS:
        return FIELDS[name]
    if name in extras:
        return Field(name, FieldKind.EXTRA, "a field of this dump", lambda row: row.extras.get(name))
    return None


def extra_names(rows: Iterable[RowFacts]) -> list[str]:
    """Names of the extras of these rows, in their order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.extras))


def row_texts(record: Mapping[str, Any], name: str = "text") -> list[str]:
    """The texts of a row that a READ field stands for."""
    if name in ("input", "output", "gts", "error"):
        return _strings(record.get(name))
    calls = [
        text for call in _dicts(record.get("tool_calls")) for text in _strings([call.get("raw"), call.get("text")])
    ]
    if name == "calls":
        return calls
    assert name == "text"
    messages = [text for message in _dicts(record.get("messages")) for text in _strings(message.get("content"))]
    plain = [text for key in ("input", "output", "gts", "error") for text in _strings(record.get(key))]
    return plain + messages + calls + _strings([record.get("uid"), record.get("request_id")])


def sorted_rows(rows: Sequence[RowFacts], field: Field, *, descending: bool) -> list[RowFacts]:
    """Sorted by a field: numbers by size, before texts. Rows without a value, and NaN, come last either way; rows that
    are alike keep their order."""

    def key(row: RowFacts) -> tuple[bool, float, str]:
        value = field.get(row)
        if isinstance(value, tuple):
            value = " ".join(value)
        return (isinstance(value, str), 0.0, value) if isinstance(value, str) else (False, float(value or 0), "")

    def known(row: RowFacts) -> bool:
        value = field.get(row)
        return value not in (None, (), "") and not (isinstance(value, float) and math.isnan(value))

    having = [row for row in rows if known(row)]
    return sorted(having, key=key, reverse=descending) + [row for row in rows if not known(row)]


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, list):
        return [text for each in value for text in _strings(each)]
    if isinstance(value, dict):  # a content part of a multimodal message, a ground truth with fields
        return [text for each in value.values() for text in _strings(each)]
    return []
