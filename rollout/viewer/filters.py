"""Filters of rows, as a person types them: `score>0.5 stop_reason=turns tool_calls>=2 text~"regex"`.

    expression  terms side by side must all hold; `or`, `not` and parentheses as usual
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
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fairbox.errors import FairboxError
from rollout.viewer.facts import RowFacts
from rollout.viewer.fields import FIELDS, Field, FieldKind, field_named, row_texts

__all__ = ["Filter", "FilterError", "Record", "parse_filter", "text_matcher"]

Record = Callable[[], Mapping[str, Any] | None]
"""Reads the row; None when it can't be had."""

_TOKEN = re.compile(
    r"""\s*(?: (?P<paren>[()])
           | (?P<op>!=|>=|<=|!~|=|>|<|~)
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
_MAX_DEPTH = 50
"""Of parentheses and `not`s."""


class FilterError(FairboxError):
    """An expression that is no filter. `position` is where, from 0."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem}, at character {position + 1}")
        self.problem = problem
        self.position = position


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed expression."""

    source: str
    reads: bool
    """Whether it may have to read a row."""
    _test: Callable[[RowFacts, Record], bool]

    def matches(self, facts: RowFacts, record: Record = lambda: None) -> bool:
        """Whether a row passes."""
        return self._test(facts, record)


def parse_filter(source: str, extras: Collection[str] = ()) -> Filter:
    """`extras` are the fields of the dump that are not known by themselves. Raises FilterError."""
    parser = _Parser(source, extras)
    node = parser.expression()
    return Filter(source.strip(), node.reads, node.test)


def text_matcher(text: str) -> re.Pattern[str]:
    """Finds `text` as it is; in any case where it has no capital letter."""
    return re.compile(re.escape(text), 0 if text != text.lower() else re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


@dataclass(frozen=True, slots=True)
class _Node:
    test: Callable[[RowFacts, Record], bool]
    reads: bool


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


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, source: str, extras: Collection[str]) -> None:
        self._tokens = _tokens(source)
        self._end = len(source)
        self._extras = extras
        self._depth = 0

    def expression(self) -> _Node:
        node = self._any() if self._tokens else _joined([], all)
        if self._tokens:
            raise FilterError("this parenthesis closes none", self._tokens[0].position)
        return node

    def _any(self) -> _Node:
        nodes = [self._all()]
        while self._take_word("or"):
            nodes.append(self._all())
        return nodes[0] if len(nodes) == 1 else _joined(nodes, any)

    def _all(self) -> _Node:
        nodes: list[_Node] = []
        required = True
        while self._tokens and not self._is_word("or") and not self._is(")"):
            if nodes and self._take_word("and"):
                required = True
                continue
            nodes.append(self._one())
            required = False
        if required:
            raise FilterError("a term is missing", self._tokens[0].position if self._tokens else self._end)
        return nodes[0] if len(nodes) == 1 else _joined(nodes, all)

    def _one(self) -> _Node:
        token = self._tokens.pop(0)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise FilterError("is nested too deeply", token.position)
        try:
            if token.kind == "paren":
                return self._parenthesis(token)
            if token.kind == "word" and token.text == "not" and not self._is_operator():
                if not self._tokens:
                    raise FilterError("a term is missing", self._end)
                return _negated(self._one())
        finally:
            self._depth -= 1
        if token.kind == "op":
            raise FilterError(f"{token.text} needs a field before it", token.position)
        if token.kind == "word" and self._is_operator():
            return self._comparison(token)
        return _reading("text", text_matcher(token.text))

    def _parenthesis(self, opening: _Token) -> _Node:
        node = self._any()
        if not self._is(")"):
            raise FilterError("this parenthesis is not closed", opening.position)
        self._tokens.pop(0)
        return node

    def _comparison(self, name: _Token) -> _Node:
        field = field_named(name.text, self._extras)
        op = self._tokens.pop(0)
        if field is None:
            known = [*FIELDS, *self._extras]
            near = difflib.get_close_matches(name.text, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
            raise FilterError(f"{name.text} is not a field; {hint}", name.position)
        if not self._tokens or self._tokens[0].kind not in ("word", "quoted"):
            raise FilterError(f"{op.text} needs a value", self._tokens[0].position if self._tokens else self._end)
        return _compared(field, op, self._tokens.pop(0))

    def _is(self, paren: str) -> bool:
        return bool(self._tokens) and self._tokens[0].kind == "paren" and self._tokens[0].text == paren

    def _is_operator(self) -> bool:
        return bool(self._tokens) and self._tokens[0].kind == "op"

    def _is_word(self, word: str) -> bool:
        following = self._tokens[1:2]
        return (
            bool(self._tokens)
            and (self._tokens[0].kind, self._tokens[0].text) == ("word", word)
            and not (following and following[0].kind == "op")
        )

    def _take_word(self, word: str) -> bool:
        taken = self._is_word(word)
        if taken:
            self._tokens.pop(0)
        return taken


def _joined(nodes: list[_Node], how: Callable[[Any], bool]) -> _Node:
    ordered = sorted(nodes, key=lambda node: node.reads)  # cheap ones first
    return _Node(lambda facts, record: how(node.test(facts, record) for node in ordered), any(n.reads for n in nodes))


def _negated(node: _Node) -> _Node:
    return _Node(lambda facts, record: not node.test(facts, record), node.reads)


def _compared(field: Field, op: _Token, value: _Token) -> _Node:
    if op.text.startswith("!"):
        return _negated(_compared(field, _Token("op", op.text[1:], op.position), value))
    if op.text == "~":
        return _matching(field, _regex(value))
    if field.kind is FieldKind.READ:
        if op.text != "=":
            raise FilterError(f"{field.name} is a text and has no size; use = or ~", op.position)
        return _reading(field.name, text_matcher(value.text))
    if value.kind == "word" and value.text == "none":
        if op.text != "=":
            raise FilterError("none has no size; use = or !=", op.position)
        return _Node(lambda facts, record: not facts.problem and field.get(facts) in (None, ()), False)
    number = _float(value.text)
    if op.text in _SIZES or field.kind is FieldKind.NUMBER:
        if field.kind in (FieldKind.TEXT, FieldKind.SET):
            raise FilterError(f"{field.name} is a text and has no size; use = or ~", op.position)
        if number is None:
            raise FilterError(f"{field.name} is compared with {value.text!r}, which is no number", value.position)
        return _sized(field, _SIZES.get(op.text, operator.eq), number)
    return _equal(field, value.text, number)


def _sized(field: Field, compare: Callable[[float, float], bool], number: float) -> _Node:
    def test(facts: RowFacts, record: Record) -> bool:
        value = field.get(facts)
        return isinstance(value, int | float) and compare(value, number)

    return _Node(test, False)


def _equal(field: Field, text: str, number: float | None) -> _Node:
    lower = text.lower()
    plain = text == lower

    def same(value: object) -> bool:
        if isinstance(value, str):
            return (value.lower() if plain else value) == text
        return isinstance(value, int | float) and value == number

    def test(facts: RowFacts, record: Record) -> bool:
        value = field.get(facts)
        return any(map(same, value)) if isinstance(value, tuple) else same(value)

    return _Node(test, False)


def _matching(field: Field, pattern: re.Pattern[str]) -> _Node:
    if field.kind is FieldKind.READ:
        return _reading(field.name, pattern)

    def found(value: object) -> bool:
        return (
            value is not None and pattern.search(f"{value:g}" if isinstance(value, float) else str(value)) is not None
        )

    def test(facts: RowFacts, record: Record) -> bool:
        value = field.get(facts)
        return any(map(found, value)) if isinstance(value, tuple) else found(value)

    return _Node(test, False)


def _reading(name: str, pattern: re.Pattern[str]) -> _Node:
    def test(facts: RowFacts, record: Record) -> bool:
        read = record()
        return read is not None and any(pattern.search(text) for text in row_texts(read, name))

    return _Node(test, True)


def _regex(value: _Token) -> re.Pattern[str]:
    try:
        return re.compile(value.text)
    except (re.error, OverflowError, RecursionError) as error:
        at = getattr(error, "pos", None) or 0
        at += value.kind == "quoted"
        raise FilterError(f"the regular expression is not one: {error}", value.position + at) from None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
