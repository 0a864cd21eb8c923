"""Filters of rows, as a person types them: `score>0.5 stop_reason=turns not tool_calls>=2 text~"regex"`.

    filter      terms side by side, which must all hold; `not` before a term turns it round
    term        FIELD OP VALUE, or a word or "quoted text" that the row's text must contain
    OP          = != < <= > >= (numbers), ~ !~ (regular expression, found anywhere)
    VALUE       a word, "quoted text" with \\" and \\\\, or `none`: the row has no such value

Words without a capital letter match any case. A comparison with a missing value does not hold; `!=` and `!~` hold
exactly where `=` and `~` do not. Parsing is pure; a filter that needs the row itself says so (`reads`), and asks for it
only where the cheaper terms leave a choice.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairbox.errors import FairboxError
from rollout.viewer.facts import FIELDS, Field, FieldKind, RowFacts, field_named, row_texts

__all__ = ["Filter", "FilterError", "RowView", "parse_filter", "text_matcher"]

Read = Callable[[], Mapping[str, Any] | None]
Test = Callable[[RowFacts, Read], bool]

_TOKEN = re.compile(
    r"""\s*(?: (?P<op>!=|>=|<=|!~|=|>|<|~)
           | "(?P<quoted>(?:[^"\\]|\\.)*)"
           | (?P<word>[^\s()"=<>~!]+) )""",
    re.VERBOSE | re.DOTALL,
)
_SIZES: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
READ_AT_ONCE_BYTES = 1 << 20
"""Of rows that a filter may have to read in one `advance()`."""
JUDGED_AT_ONCE = 5000
"""Rows that are judged by their facts in one `advance()`; some 10 ms."""


class FilterError(FairboxError):
    """An expression that is no filter. `position` is where, from 0."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem}, at character {position + 1}")
        self.problem = problem
        self.position = position


@dataclass(frozen=True, slots=True)
class _Term:
    test: Test
    reads: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed expression."""

    source: str
    reads: bool
    """Whether it may have to read a row."""
    _terms: tuple[_Term, ...]

    def matches(self, facts: RowFacts, record: Read = lambda: None) -> bool:
        """Whether a row passes; `record` reads it, and gives None when it can't be had."""
        return all(term.test(facts, record) for term in self._terms)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


class RowView:
    """The rows of a step that pass a filter. `extend()` it with rows, `advance()` until `pending` is 0.

    A row is judged once, so that a growing file costs what grew, and a few at a time; whoever calls it decides how
    often, and may stop.
    """

    def __init__(self, read: Callable[[RowFacts], Mapping[str, Any] | str], filter: Filter | None = None) -> None:
        self._read = read
        self.filter = filter
        self.rows: list[RowFacts] = []
        self.passed: list[RowFacts] = []
        self._judged = 0

    @property
    def pending(self) -> int:
        """Rows that are not judged yet."""
        return len(self.rows) - self._judged

    def extend(self, rows: Sequence[RowFacts]) -> None:
        """Adds rows behind those that are there."""
        self.rows.extend(rows)

    def advance(self) -> None:
        """Judges some rows."""
        budget = READ_AT_ONCE_BYTES
        for row in self.rows[self._judged : self._judged + JUDGED_AT_ONCE]:
            if self.filter is None or self.filter.matches(row, lambda row=row: self._record(row)):  # type: ignore[misc]
                self.passed.append(row)
            self._judged += 1
            budget -= row.size if self.filter is not None and self.filter.reads else 0
            if budget <= 0:
                return

    def _record(self, row: RowFacts) -> Mapping[str, Any] | None:
        record = self._read(row)
        return record if isinstance(record, Mapping) else None


def parse_filter(source: str, extras: Collection[str] = ()) -> Filter:
    """`extras` are the fields of the dump that are not known by themselves. Raises FilterError."""
    tokens = _tokens(source)
    terms = []
    while tokens:
        terms.append(_term(tokens, len(source), extras))
    terms.sort(key=lambda term: term.reads)  # cheap ones first
    return Filter(source.strip(), any(term.reads for term in terms), tuple(terms))


def text_matcher(text: str) -> re.Pattern[str]:
    """Finds `text` as it is; in any case where it has no capital letter."""
    return re.compile(re.escape(text), 0 if text != text.lower() else re.IGNORECASE)


def _tokens(source: str) -> list[_Token]:
    found, at = [], 0
    while source[at:].strip():
        match = _TOKEN.match(source, at)
        if match is None:
            at += len(source[at:]) - len(source[at:].lstrip())
            problem = "the quote is not closed" if source[at] == '"' else f"{source[at]!r} is not understood here"
            raise FilterError(problem, at)
        kind = str(match.lastgroup)
        text = match[kind]
        if kind == "quoted":
            text = re.sub(r'\\(["\\])', r"\1", text)
        found.append(_Token(kind, text, match.start(kind) - (kind == "quoted")))
        at = match.end()
    return found


def _term(tokens: list[_Token], end: int, extras: Collection[str]) -> _Term:
    """Takes the tokens of the first term."""
    negative = False
    while tokens and (tokens[0].kind, tokens[0].text) == ("word", "not") and not _is_operator(tokens[1:]):
        negative = not negative
        tokens.pop(0)
    if not tokens:
        raise FilterError("a term is missing", end)
    token = tokens.pop(0)
    if token.kind == "op":
        raise FilterError(f"{token.text} needs a field before it", token.position)
    if token.kind == "word" and _is_operator(tokens):
        term = _comparison(token, tokens, end, extras)
    elif token.kind == "word" and token.text in ("or", "and"):
        problem = f"there is no {token.text}: all terms must hold; quote it to look for the word"
        raise FilterError(problem, token.position)
    else:
        term = _reading("text", text_matcher(token.text))
    return _negated(term) if negative else term


def _is_operator(tokens: list[_Token]) -> bool:
    return bool(tokens) and tokens[0].kind == "op"


def _comparison(name: _Token, tokens: list[_Token], end: int, extras: Collection[str]) -> _Term:
    field = field_named(name.text, extras)
    op = tokens.pop(0)
    if field is None:
        known = [*FIELDS, *extras]
        near = difflib.get_close_matches(name.text, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        raise FilterError(f"{name.text} is not a field; {hint}", name.position)
    if not tokens or tokens[0].kind == "op":
        raise FilterError(f"{op.text} needs a value", tokens[0].position if tokens else end)
    value = tokens.pop(0)
    if op.text.startswith("!"):
        return _negated(_compared(field, _Token("op", op.text[1:], op.position), value))
    return _compared(field, op, value)


def _negated(term: _Term) -> _Term:
    return _Term(lambda facts, record: not term.test(facts, record), term.reads)


def _compared(field: Field, op: _Token, value: _Token) -> _Term:
    if op.text == "~":
        return _matching(field, _regex(value))
    if field.kind in (FieldKind.TEXT, FieldKind.FLAG, FieldKind.SET, FieldKind.READ) and op.text != "=":
        raise FilterError(f"{field.name} is a text and has no size; use = or ~", op.position)
    if field.kind is FieldKind.READ:
        return _reading(field.name, text_matcher(value.text))
    if value.kind == "word" and value.text == "none":
        if op.text != "=":
            raise FilterError("none has no size; use = or !=", op.position)
        return _Term(lambda facts, record: not facts.problem and field.get(facts) in (None, ()))
    number = _float(value.text)
    if number is None and (op.text != "=" or field.kind is FieldKind.NUMBER):
        raise FilterError(f"{field.name} is compared with {value.text!r}, which is no number", value.position)
    if number is not None and (op.text != "=" or field.kind is FieldKind.NUMBER):
        return _any_of(field, _sized(_SIZES.get(op.text, operator.eq), number))
    return _any_of(field, _same_as(value.text, number))


def _any_of(field: Field, holds: Callable[[object], bool]) -> _Term:
    """Holds where the value does, or one of several."""

    def test(facts: RowFacts, record: Read) -> bool:
        value = field.get(facts)
        return any(map(holds, value)) if isinstance(value, tuple) else holds(value)

    return _Term(test)


def _sized(compare: Callable[[float, float], bool], number: float) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int | float) and compare(value, number)


def _same_as(text: str, number: float | None) -> Callable[[object], bool]:
    plain = text == text.lower()

    def same(value: object) -> bool:
        if isinstance(value, str):
            return (value.lower() if plain else value) == text
        return isinstance(value, int | float) and value == number

    return same


def _matching(field: Field, pattern: re.Pattern[str]) -> _Term:
    if field.kind is FieldKind.READ:
        return _reading(field.name, pattern)

    def found(value: object) -> bool:
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return value is not None and pattern.search(text) is not None

    return _any_of(field, found)


def _reading(name: str, pattern: re.Pattern[str]) -> _Term:
    def test(facts: RowFacts, record: Read) -> bool:
        read = record()
        return read is not None and any(pattern.search(text) for text in row_texts(read, name))

    return _Term(test, reads=True)


def _regex(value: _Token) -> re.Pattern[str]:
    try:
        return re.compile(value.text)
    except (re.error, OverflowError, RecursionError) as error:
        at = (getattr(error, "pos", None) or 0) + (value.kind == "quoted")
        raise FilterError(f"the regular expression is not one: {error}", value.position + at) from None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
