"""JSON of strangers, read in steps and bounded while it is read. Pure.

`json.loads` holds the interpreter, and so the event loop, until it is done: 8 MiB of `[],[],` take half a second.
Invariants: no step looks at more than `STEP` characters, so other threads get their turn; depth, parts and digits are
bounded before anything is made of them; every problem is a ValueError of one sentence.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import accumulate
from typing import Any

STEP = 16 << 10
"""Characters of one step: less than a millisecond."""
MOST_DIGITS = 4300
"""Characters of a number: Python makes no longer ints of text, because their cost is quadratic."""


def _finite(text: str) -> float:
    if not -_LARGEST <= (value := float(text)) <= _LARGEST:
        raise ValueError(f"{text[:20]} is no finite number")
    return value


_LARGEST = sys.float_info.max
_STRICT, _LAX = json.JSONDecoder(), json.JSONDecoder(strict=False)
_FINITE = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
# No group is possessive: before Python 3.11.5 such a one matches wrongly. Nothing follows for which one would go back.
_STRING, _BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"?', re.DOTALL), re.compile(r"[][{}]")
_SPACE = re.compile(r"[ \t\n\r]*+")
_WORD = re.compile(r"[-+.0-9A-Za-z]*+")
_SCALAR = rf'(?:"[^"\\\x00-\x1f]{{0,1000}}+"|[-+.0-9A-Za-z]{{1,{MOST_DIGITS}}}+)[ \t\n\r]*+'
_COMMA = r",[ \t\n\r]*+"
_RUN = re.compile(f"(?:{_SCALAR}{_COMMA})+")
"""Scalars of an array up to its last comma: most of what is long is such a row, and the C scanner is fast with it."""
_ROWS = re.compile(rf"(?:(?:{_SCALAR}|\[[ \t\n\r]*+(?:{_SCALAR}(?:{_COMMA})?)*\][ \t\n\r]*+){_COMMA})+")
"""The same with arrays of scalars among them, such as an id with its logprob."""
_UNICODE = r"\\u[0-9a-fA-F]{4}"
_PIECE = re.compile(
    rf'(?:[^"\\]++|\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{{2}}{_UNICODE}|\\u(?![dD][89abAB])[0-9a-fA-F]{{4}}|{_UNICODE}(?=.{{6}}))*',
    re.DOTALL,
)
"""Text of a string that can be cut behind it: a pair of surrogates stays together."""
_LAST_PIECE = re.compile(rf'(?:[^"\\]++|\\[^u]|{_UNICODE})*', re.DOTALL)


def loads(data: bytes | str, *, depth: int, left: list[int], strict: bool = True, finite: bool = False) -> Any:
    """As `json.loads` for UTF-8. ValueError also for more than `depth` levels.

    `left` holds how many values may come, keys not counted, here and in what is read with it later; an empty list or
    object may count as two. `strict`: no control characters in strings; `finite`: nor NaN and infinite numbers."""
    text = data.decode() if isinstance(data, bytes) else data
    decoder = _FINITE if finite else _STRICT if strict else _LAX
    if len(text) > STEP:
        builder = _Builder(text, left[0], decoder)
        try:
            return builder.whole(depth)
        finally:
            left[0] = builder.left
    bare = _STRING.sub("", text)
    marks = _BRACKET.findall(bare)
    if max(accumulate(1 if mark in "[{" else -1 for mark in marks), default=0) > depth:
        raise ValueError("the text is nested too deeply")
    left[0] -= 1 + bare.count(",") + len(marks) // 2
    if left[0] < 0:
        raise ValueError("the text has too many values")
    return decoder.decode(text)


class Reader:
    """A text and a place in it. What is read is behind white space."""

    def __init__(self, text: str, parts: int, decoder: json.JSONDecoder = _STRICT) -> None:
        self._text = text
        self._at = 0
        self._scan = decoder.raw_decode
        self.left = parts
        """Values that may still come."""

    def count(self, number: int) -> None:
        """Takes note of so many values."""
        self.left -= number
        if self.left < 0:
            raise ValueError("the text has too many values")

    def mark(self) -> str:
        """The next character; empty at the end."""
        text, at = self._text, self._at
        while text[at : at + 1] in (" ", "\t", "\n", "\r"):
            at = _SPACE.match(text, at, at + STEP).end()  # type: ignore[union-attr]
        self._at = at
        return text[at : at + 1]

    def takes(self, mark: str) -> bool:
        """Says whether that is the next character, and takes it if so."""
        found = self.mark() == mark
        self._at += found
        return found

    def expect(self, mark: str) -> None:
        """Takes that character."""
        if not self.takes(mark):
            raise ValueError(f"Expecting {mark!r} at character {self._at}")

    def end(self) -> None:
        """Nothing but white space is left."""
        if self.mark():
            raise ValueError(f"Extra data at character {self._at}")

    def string(self) -> str:
        """A string, in pieces where it is long."""
        self.expect('"')
        text, pieces = self._text, []
        while True:
            window = self._at + STEP
            pattern = _PIECE if window < len(text) else _LAST_PIECE
            end = pattern.match(text, self._at, window).end()  # type: ignore[union-attr]
            closed = text[end : end + 1] == '"'
            if end == self._at and not closed:
                raise ValueError(f"Invalid or unterminated string at character {end}")
            pieces.append(self._scan(f'"{text[self._at : end]}"', 0)[0])
            self._at = end + closed
            if closed:
                return "".join(pieces)

    def word(self) -> Any:
        """A number or a constant."""
        self.mark()
        word = _WORD.match(self._text, self._at, self._at + MOST_DIGITS + 1)[0]  # type: ignore[index]
        if len(word) > MOST_DIGITS:
            raise ValueError(f"a number has more than {MOST_DIGITS} digits")
        value, end = self._scan(word, 0)
        if end != len(word):
            raise ValueError(f"Expecting value at character {self._at}")
        self._at += end
        return value

    def run(self) -> list[Any]:
        """Scalars and the commas behind them, as many as are next: a value has to follow."""
        values = self._matched(_RUN)
        self.count(len(values))
        return values

    def rows(self) -> list[Any]:
        """The same, and arrays of scalars among them."""
        values = self._matched(_ROWS)
        self.count(len(values) + sum(len(each) for each in values if isinstance(each, list)))
        return values

    def _matched(self, pattern: re.Pattern[str]) -> list[Any]:
        self.mark()
        found = pattern.match(self._text, self._at, self._at + STEP)
        if found is None:
            return []
        self._at = found.end()
        row = found[0].rstrip(", \t\n\r")
        values, end = self._scan(f"[{row}]", 0)
        if end != len(row) + 2:
            raise ValueError(f"Expecting ',' before character {self._at}")
        return values  # type: ignore[no-any-return]


class _Builder(Reader):
    """Makes the values."""

    def whole(self, depth: int) -> Any:
        value = self._value(depth)
        self.end()
        return value

    def _value(self, depth: int) -> Any:
        self.count(1)
        match self.mark():
            case '"':
                return self.string()
            case "[" | "{" if not depth:
                raise ValueError("the text is nested too deeply")
            case "[":
                return self._array(depth - 1)
            case "{":
                return self._object(depth - 1)
        return self.word()

    def _array(self, depth: int) -> list[Any]:
        self.expect("[")
        found: list[Any] = []
        if self.takes("]"):
            return found
        while True:
            found += self.rows() if depth else self.run()
            found.append(self._value(depth))
            if self.takes("]"):
                return found
            self.expect(",")

    def _object(self, depth: int) -> dict[str, Any]:
        self.expect("{")
        found: dict[str, Any] = {}
        if self.takes("}"):
            return found
        while True:
            key = self.string()
            self.expect(":")
            found[key] = self._value(depth)
            if self.takes("}"):
                return found
            self.expect(",")
