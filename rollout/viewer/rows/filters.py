"""Filters of rows, as a person types them: `score>0.5 stop_reason=turns not tool_calls>=2 text~"regex"`.

    filter      terms side by side, which must all hold; `not` before a term turns it round
    term        FIELD OP VALUE, or a FIELD that is true or false, or a word or "quoted text" that the row's text must
                contain
    OP          = != < <= > >= (numbers), ~ !~ (regular expression, found anywhere)
    VALUE       a word, "quoted text" with \\" and \\\\, or `none`: the row has no such value

Words without a capital letter match any case. A comparison with a missing value does not hold; `!=` and `!~` hold
exactly if `=` and `~` do not. Parsing is pure; a filter that needs the row itself reads it only if the cheaper terms
leave a choice.
"""

from __future__ import annotations

import difflib
import operator
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fairbox.errors import FairboxError
from rollout.viewer.rows.columns import Column
from rollout.viewer.rows.index import StepFile, read_row
from rollout.viewer.rows.summary import FIELDS, RowSummary, field_named, row_texts

Read = Callable[[RowSummary], Mapping[str, Any] | str]
Test = Callable[[RowSummary, Read], bool]
Field = Column[RowSummary]

_OP = "!=|>=|<=|!~|=|>|<|~"
_WORD = r"""[^\s()"=<>~!]+"""
_QUOTED = r'''"(?:[^"\\]|\\.)*"'''
_TERM = re.compile(
    rf"""\s* (?P<nots> (?: not \s+ (?!{_OP}) )* )
         (?: (?P<name>{_WORD}) \s* (?P<op>{_OP}) \s* (?P<value>{_QUOTED}|{_WORD})? | (?P<text>{_QUOTED}|{_WORD}) )""",
    re.VERBOSE | re.DOTALL,
)
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_FLAGS: Mapping[str, bool] = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
JUDGED_S = 0.02
"""Seconds for which one `advance()` judges rows, the last of them left out."""


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
    _terms: tuple[_Term, ...]

    def matches(self, facts: RowSummary, read: Read = read_row) -> bool:
        """Says whether a row passes; `read` reads it, and gives a text if it can't be had."""
        return all(term.test(facts, read) for term in self._terms)


class RowView:
    """The rows of a file that pass a filter. `advance()` it until `pending` is 0, and again when the file has grown.

    A row is judged once, so that a growing file costs what grew, and a few at a time; whoever calls it decides how
    often, and may stop.
    """

    def __init__(self, file: StepFile, filter: Filter | None = None) -> None:
        self.filter = filter
        self.rows = file.rows
        self.passed: list[RowSummary] = []
        self._judged = 0

    @property
    def pending(self) -> int:
        """Rows that are not judged yet."""
        return len(self.rows) - self._judged

    def advance(self) -> None:
        """Judges some rows."""
        end = time.monotonic() + JUDGED_S
        for row in self.rows[self._judged :]:
            if self.filter is None or self.filter.matches(row):
                self.passed.append(row)
            self._judged += 1
            if time.monotonic() > end:
                return


def parse_filter(source: str, extras: Collection[str] = ()) -> Filter:
    """`extras` are the fields of the dump that are not known by themselves. Raises FilterError."""
    terms: list[_Term] = []
    at = 0
    while source[at:].strip():
        at += len(source[at:]) - len(source[at:].lstrip())
        match = _TERM.match(source, at)
        if match is None:
            op = re.match(_OP, source[at:])
            problem = f"{op[0]} needs a field before it" if op else f"{source[at]!r} is not understood here"
            raise FilterError("the quote is not closed" if source[at] == '"' else problem, at)
        terms.append(_term(match, extras))
        at = match.end()
    terms.sort(key=lambda term: term.reads)  # cheap ones first
    return Filter(source.strip(), tuple(terms))


def text_matcher(text: str) -> re.Pattern[str]:
    """Finds `text` as it is; in any case if it has no capital letter."""
    return re.compile(re.escape(text), 0 if text != text.lower() else re.IGNORECASE)


def _term(match: re.Match[str], extras: Collection[str]) -> _Term:
    text, op = match["text"], match["op"]
    negative = match["nots"].count("not") % 2 == 1
    if op:
        field = _known_field(match["name"], extras, match.start("name"))
        if match["value"] is None:
            raise FilterError(f"{op} needs a value", match.end())
        negative ^= op.startswith("!")
        term = _comparison(field, op.removeprefix("!"), match)
    elif text == "not":
        raise FilterError("a term is missing", match.end())
    elif text in ("or", "and"):
        problem = f"there is no {text}: all terms must hold; quote it to look for the word"
        raise FilterError(problem, match.start("text"))
    elif text in FIELDS and FIELDS[text].kind == "flag":
        term = _any_of(FIELDS[text], "true".__eq__)
    elif text in extras:
        term = _flag_or_word(text)
    else:
        term = _reading(FIELDS["text"], text_matcher(_unquoted(text)))
    return _Term(lambda facts, read: not term.test(facts, read), term.reads) if negative else term


def _unquoted(text: str) -> str:
    return re.sub(r'\\(["\\])', r"\1", text[1:-1]) if text.startswith('"') else text


def _known_field(name: str, extras: Collection[str], position: int) -> Field:
    field = field_named(name, extras)
    if field is None:
        known = [*FIELDS, *extras]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        raise FilterError(f"{name} is not a field; {hint}", position)
    return field


def _comparison(field: Field, op: str, match: re.Match[str]) -> _Term:
    wanted, position = _unquoted(match["value"]), match.start("value")
    if op == "~":
        return _matching(field, wanted, position + match["value"].startswith('"'))
    if field.kind == "flag":
        if op != "=":
            raise FilterError(f"{field.name} is true or false and has no size; use = or !=", match.start("op"))
        if wanted.lower() not in _FLAGS:
            raise FilterError(f"{field.name} is true or false, and not {wanted!r}", position)
        return _any_of(field, str(_FLAGS[wanted.lower()]).lower().__eq__)
    if field.kind in ("text", "read") and op != "=":
        raise FilterError(f"{field.name} is a text and has no size; use = or ~", match.start("op"))
    if field.kind == "read":
        return _reading(field, text_matcher(wanted))
    if match["value"] == "none":
        if op != "=":
            raise FilterError("none has no size; use = or !=", match.start("op"))
        return _Term(lambda facts, read: not facts.problem and field.get(facts) is None)
    number = _float(wanted)
    if number is None and (op != "=" or field.kind == "number"):
        raise FilterError(f"{field.name} is compared with {wanted!r}, which is no number", position)
    compare, plain, flag = _COMPARE[op], wanted == wanted.lower(), _FLAGS.get(wanted.lower())

    def holds(each: object) -> bool:
        if isinstance(each, bool) and op == "=":
            return each is flag
        if isinstance(each, str):
            return op == "=" and (each.lower() if plain else each) == wanted
        return isinstance(each, int | float) and number is not None and compare(each, number)

    return _any_of(field, holds)


def _matching(field: Field, regex: str, position: int) -> _Term:
    try:
        pattern = re.compile(regex)
    except (re.error, OverflowError, RecursionError) as error:
        at = position + (getattr(error, "pos", None) or 0)
        raise FilterError(f"the regular expression is not one: {error}", at) from None
    if field.kind == "read":
        return _reading(field, pattern)

    def found(each: object) -> bool:
        text = f"{each:g}" if isinstance(each, float) else str(each)
        return each is not None and pattern.search(text) is not None

    return _any_of(field, found)


def _any_of(field: Field, holds: Callable[[object], bool]) -> _Term:
    """Holds if the value does, or one of several."""

    def test(facts: RowSummary, read: Read) -> bool:
        value = field.get(facts)
        return any(map(holds, value)) if isinstance(value, tuple) else holds(value)

    return _Term(test)


def _flag_or_word(name: str) -> _Term:
    """Term of a bare word: the row's field of that name if it is true or false, else whether its text has the word."""
    word = _reading(FIELDS["text"], text_matcher(name))

    def test(facts: RowSummary, read: Read) -> bool:
        value = facts.extras.get(name)
        return value if isinstance(value, bool) else word.test(facts, read)

    return _Term(test, reads=True)


def _reading(field: Field, pattern: re.Pattern[str]) -> _Term:
    def test(facts: RowSummary, read: Read) -> bool:
        record = read(facts)
        return not isinstance(record, str) and any(pattern.search(text) for text in row_texts(record, field.name))

    return _Term(test, reads=True)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
