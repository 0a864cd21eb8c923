"""Tool calls whose arguments are literals that are no JSON: Gemma 4's, and the Python of LFM2. Pure.

    <|tool_call>call:code_interpreter{code:<|"|>print(1)<|"|>,runs:3}<tool_call|>
    <|tool_call_start|>[code_interpreter(code="print(1)", runs=3)]<|tool_call_end|>

Nothing is evaluated. A string in Python's form may hold line breaks, because LFM2's template writes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rollout.tools.formats.calls import (
    MAX_DEPTH,
    MalformedCall,
    MarkedCalls,
    ToolCall,
    shorten,
    skip_space,
)

_NUMBER = re.compile(r"-?\d[\d_]*(\.\d*)?([eE][+-]?\d+)?")
_MOST_DIGITS = 400
"""Characters of a number that is read: the largest float has 309 digits, and Python refuses an int of over 4,300."""
_CONSTANTS: Final = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_WORD = re.compile(r"\w+")
_QUOTED = {
    quote: re.compile(rf"{quote}((?:[^{quote[0]}\\]|\\.{inner})*){quote}", re.DOTALL)
    for quote, inner in (('"""', '|"(?!"")'), ("'''", "|'(?!'')"), ('"', ""), ("'", ""))
}
"""Strings of Python by their quotes, the longer quotes first."""
_ESCAPE = re.compile(
    r"\\(?:([\\'\"nrtbfa0])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|(\n))"
)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "a": "\a", "0": "\0"}
_MARKED_STRING = '<|"|>'


class _Broken(ValueError):
    """The call can't be read; the text says why, as a clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteralFormat(MarkedCalls):
    """One format, by its marks."""

    head: re.Pattern[str]
    """The name, as group 1, up to the first argument."""
    end: str
    """The mark behind the last argument."""
    equals: str
    """The mark between an argument's name and its value."""
    marked_strings: bool = False
    """Strings lie between `<|"|>`, and not in quotes."""
    listed: bool = False
    """Calls stand in a list, `[` and `]`."""

    def _read(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall | MalformedCall]:
        position = 0
        while (start := self._next(text, position)) is not None:
            reader = _Reader(self, text, start)
            try:
                yield from reader.calls()
                position = reader.at
            except _Broken as broken:
                position = self._stop(text, start)
                yield MalformedCall(str(broken), text[start:position].strip(), reader.name)


class _Reader:
    """Reads the calls between two marks; `at` is how far it is. Raises _Broken."""

    def __init__(self, form: LiteralFormat, text: str, at: int) -> None:
        self._form = form
        self._text = text
        self.at = at
        self.name = ""
        """Name of the call that is being read; empty before it is known."""

    def calls(self) -> Iterator[ToolCall]:
        form = self._form
        if form.listed:
            self._expect("[")
        while True:
            start = self.at = skip_space(self._text, self.at)
            self.name = ""
            head = form.head.match(self._text, start)
            if head is None:
                raise _Broken(f"a call must follow {form.opening}, but there is {self._near()}")
            self.name, self.at = head[1], head.end()
            yield ToolCall(self.name, self._pairs(form.end, form.equals, MAX_DEPTH), self._text[start : self.at])
            if not form.listed or not self._found(","):
                break
        if form.listed:
            self._expect("]")
        self._expect(form.closing)

    def _pairs(self, end: str, equals: str, levels: int) -> dict[str, Any]:
        """Names and values up to `end`, which is read too."""
        pairs: dict[str, Any] = {}
        while not self._found(end):
            key = self._key(equals)
            if key in pairs:
                raise _Broken(f'its argument "{key}" is given twice')
            self._expect(equals)
            pairs[key] = self._value(levels - 1)
            if not self._found(","):
                self._expect(end)
                break
        return pairs

    def _key(self, equals: str) -> str:
        quoted = self._string()
        if quoted is not None:
            return quoted
        start = self.at = skip_space(self._text, self.at)
        word = _WORD.match(self._text, start)
        if word is None or not self._text.startswith(equals, skip_space(self._text, word.end())):
            raise _Broken(f"an argument must be NAME{equals}VALUE, but there is {self._near()}")
        self.at = word.end()
        return word.group()

    def _value(self, levels: int) -> Any:
        if not levels:
            raise _Broken("its arguments are nested too deeply")
        quoted = self._string()
        if quoted is not None:
            return quoted
        if self._found("{"):
            return self._pairs("}", ":", levels)
        for begin, end in ("[]", "()"):
            if self._found(begin):
                return self._items(end, levels)
        number = _NUMBER.match(self._text, self.at)
        if number is not None:
            return self._number(number)
        word = _WORD.match(self._text, self.at)
        if word is None or word.group() not in _CONSTANTS:
            raise _Broken(f"a value must follow, but there is {self._near()}")
        self.at = word.end()
        return _CONSTANTS[word.group()]

    def _items(self, end: str, levels: int) -> list[Any]:
        items: list[Any] = []
        while not self._found(end):
            items.append(self._value(levels - 1))
            if not self._found(","):
                self._expect(end)
                break
        return items

    def _number(self, number: re.Match[str]) -> int | float:
        if len(number.group()) > _MOST_DIGITS:
            raise _Broken(f"a number has more than {_MOST_DIGITS} characters")
        self.at = number.end()
        digits = number.group().replace("_", "")
        value = float(digits) if number[1] or number[2] else int(digits)
        if value in (math.inf, -math.inf):
            raise _Broken(f"the number {digits} is too large")
        return value

    def _string(self) -> str | None:
        """The string that begins here; None: there is none."""
        self.at = skip_space(self._text, self.at)
        if self._form.marked_strings:
            if not self._found(_MARKED_STRING):
                return None
            end = self._text.find(_MARKED_STRING, self.at)
            if end < 0:
                raise _Broken(f"a string is not closed: {_MARKED_STRING} is missing")
            value, self.at = self._text[self.at : end], end + len(_MARKED_STRING)
            return value
        for quote, pattern in _QUOTED.items():
            if self._text.startswith(quote, self.at):
                found = pattern.match(self._text, self.at)
                if found is None:
                    raise _Broken(f"a string is not closed: {quote} is missing")
                self.at = found.end()
                return _ESCAPE.sub(_unescaped, found[1])
        return None

    def _found(self, mark: str) -> bool:
        """Says whether `mark` comes next, and reads it."""
        at = skip_space(self._text, self.at)
        if not self._text.startswith(mark, at):
            return False
        self.at = at + len(mark)
        return True

    def _expect(self, mark: str) -> None:
        if not self._found(mark):
            what = "but it is cut off" if self.at >= len(self._text) else f"but there is {self._near()}"
            raise _Broken(f"{mark} must follow, {what}")

    def _near(self) -> str:
        return shorten(self._text[self.at : self.at + 200]) if self.at < len(self._text) else "nothing"


def _unescaped(found: re.Match[str]) -> str:
    if found[5]:
        return ""
    if found[1]:
        return _ESCAPED.get(found[1], found[1])
    return chr(int(found[2] or found[3] or found[4], 16))


GEMMA4 = LiteralFormat(
    "gemma4",
    "<|tool_call>",
    "<tool_call|>",
    head=re.compile(r"\s*call:\s*([\w.-]+)\s*\{"),
    end="}",
    equals=":",
    marked_strings=True,
    thought=("<|channel>thought", "<channel|>"),
)
LFM2 = LiteralFormat(
    "lfm2",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    head=re.compile(r"\s*([\w.-]+)\s*\("),
    end=")",
    equals="=",
    listed=True,
    around=("[", "]", ","),
)
