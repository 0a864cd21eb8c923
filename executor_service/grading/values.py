"""Plain values in the server: parsed, never built. What a candidate returned is kept as the tree of its text.

A tree is what JSON makes of the text of `guest.serve.values`: scalars, and arrays that begin with a tag. Invariants:
a tree that `parse` has returned is well-formed and bounded, and a text is before anything is made of it; nothing here
hashes a value of a candidate (colliding integers would cost minutes) or calls a method of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from executor_service.guest.serve.values import ARRAYS, MAX_BYTES, MAX_DEPTH, MAX_NODES, complex_of
from fairbox.bounded_json import Reader

Tree = Any
"""None, bool, int, float, str, or [tag, ...]."""
ARGUMENT_DEPTH = 3
"""Depth at which `call_text` puts an argument."""


class Malformed(ValueError):
    """The text is no plain value; the sentence says where and why."""


def parse(text: bytes) -> Tree:
    """The tree of a text. Malformed for anything that is not plain data, references included."""
    check(text)
    return json.loads(text)


def check(text: bytes, *, depth: int = 0, parts: list[int] | None = None) -> None:
    """Malformed for what `parse` refuses; makes nothing of the text, whose cost is linear.

    `depth` is where the value will be put within another one. `parts` counts those of several texts together.
    """
    if len(text) > MAX_BYTES:
        raise Malformed(f"a value of {len(text)} bytes is too large, at most {MAX_BYTES} are allowed")
    used = [0] if parts is None else parts
    try:
        reader = _Value(text.decode(), MAX_NODES - used[0])
        reader.value(depth)
        reader.end()
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed(str(error)) from None
    used[0] = MAX_NODES - reader.left


def _text(digits: str) -> None:
    bytes.fromhex(digits).decode("utf-8", "surrogatepass")


_SCALARS: dict[str, Callable[[str], object]] = {
    "i": lambda digits: int(digits, 16),
    "c": complex_of,
    "s": _text,
    "b": bytes.fromhex,
}
"""By its tag, what tells that a scalar is well-formed."""
_CONTAINERS = frozenset("ltezd")
_TAGGED = re.compile(r'[ \t\n\r]{0,100}+\[[ \t\n\r]{0,100}+"([a-z])"[ \t\n\r]{0,100}+,')
"""Pattern of how an array nearly always begins."""
_REFERENCES = {"o": "an object of the candidate", "r": "a type", "x": "an exception class"}


class _Value(Reader):
    """Goes over the text of one value."""

    def count(self, number: int) -> None:
        """Malformed for one part too many."""
        self.left -= number
        if self.left < 0:
            self._refuse()

    def _refuse(self) -> None:
        raise Malformed(f"a value is nested more than {MAX_DEPTH} deep, or has more than {MAX_NODES} parts")

    def value(self, depth: int, *, hashed: bool = False) -> None:
        """`hashed`: it is a key or a member of a set, or part of one."""
        self.count(1)
        if depth > MAX_DEPTH:
            self._refuse()
        if tagged := _TAGGED.match(self._text, self._at):
            self._at = tagged.end()
            self._tagged(tagged[1], depth + 1, hashed)
            return
        match self.mark():
            case '"':
                self.string().encode()  # one with surrogates has a tag
            case "[":
                self.expect("[")
                tag = self.string() if self.mark() == '"' else ""
                if not tag:
                    raise Malformed("an array has no known tag")
                self.expect(",")
                self._tagged(tag, depth + 1, hashed)
            case "{":
                raise Malformed("an object of JSON is no value: a dict is an array with the tag d")
            case _:
                self.word()

    def _tagged(self, tag: str, depth: int, hashed: bool) -> None:
        """Reads what follows the tag of an array and its comma."""
        if tag in _REFERENCES:
            raise Malformed(f"{_REFERENCES[tag]} is not plain data")
        if hashed and tag in ("l", "e", "d", "n"):
            raise Malformed("a list, set, dict or array can't be hashed, so it is no key and no member of a set")
        if tag in _SCALARS:
            _SCALARS[tag](self.string())
        elif tag == "n":
            if self.string() not in ARRAYS:
                raise Malformed("an array has no known kind")
            self.expect(",")
            self.value(depth)
        elif tag not in _CONTAINERS:
            raise Malformed("an array has no known tag")
        else:
            number = self._items(depth, hashed=hashed or tag in ("e", "z", "d"))
            if tag == "d":
                self.expect(",")
                if self._items(depth, hashed=hashed) != number:
                    raise Malformed("a dict has not as many values as keys")
        self.expect("]")

    def _items(self, depth: int, *, hashed: bool) -> int:
        """Reads an array of values and returns how many there are."""
        self.expect("[")
        if self.takes("]"):
            return 0
        number = 0
        while True:
            number += len(self.run()) + 1
            self.value(depth, hashed=hashed)
            if self.takes("]"):
                return number
            self.expect(",")


def call_text(name: str, arguments: Sequence[str], keywords: Mapping[str, str]) -> bytes:
    """Texts of arguments, which `check` has found good, as an `ask` to call an entry point:
    [[name, arguments, keywords], {}]."""
    names = json.dumps(list(keywords))
    values = f'["l", [{", ".join(arguments)}]], ["d", {names}, [{", ".join(keywords.values())}]]'
    return f'["l", [["l", [{json.dumps(name)}, {values}]], ["d", [], []]]]'.encode()
