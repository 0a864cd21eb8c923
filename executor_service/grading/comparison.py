"""Compares an output with the expected one. Pure, and safe with anything a candidate can print or return.

Texts are compared as bytes, values as trees (see `values`). Sets and dicts are compared by sorting, not by hashing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from io import BytesIO
from itertools import zip_longest
from typing import Any

from executor_service.grading.model import Comparison, Tolerance
from executor_service.grading.values import Tree
from executor_service.guest.serve.values import complex_of

TOLERANCE = Tolerance()
"""Tolerance of requests that set none."""
_INEXACT = frozenset((float, complex))
_PIECES = re.compile(rb"[^\S\n]+|\S+")
_WHOLE = re.compile(rb"[+-]?[0-9]{1,400}")
_NUMBER = re.compile(rb"[+-]?(?:[0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?")
"""Longer ones are no numbers here: they are compared as text."""


def same_text(expected: bytes, actual: bytes, comparison: Comparison, tolerance: Tolerance = TOLERANCE) -> bool:
    if expected == actual or comparison is Comparison.EXACT:
        return expected == actual
    for wanted, got in zip_longest(_lines(expected), _lines(actual)):
        if wanted == got:
            continue
        if wanted is None or got is None or comparison is Comparison.WHITESPACE:
            return False
        if not _same_line(wanted, got, tolerance):
            return False
    return True


def _lines(text: bytes) -> Iterator[bytes]:
    """Without white space at their ends, one by one: all of a large text take 50 times its size."""
    return map(bytes.rstrip, BytesIO(text.rstrip()))


def _same_line(expected: bytes, actual: bytes, tolerance: Tolerance) -> bool:
    pieces = zip_longest(_PIECES.finditer(expected), _PIECES.finditer(actual))
    return all(a and b and (a[0] == b[0] or _close_texts(a[0], b[0], tolerance)) for a, b in pieces)


def _close_texts(expected: bytes, actual: bytes, tolerance: Tolerance) -> bool:
    if not _NUMBER.fullmatch(expected) or not _NUMBER.fullmatch(actual):
        return False
    if _WHOLE.fullmatch(expected) and _WHOLE.fullmatch(actual):
        return int(expected) == int(actual)
    wanted, got = float(expected), float(actual)
    # One too large for a float is the same only where it is written the same.
    return math.isfinite(wanted) and math.isfinite(got) and _close(wanted, got, tolerance)


def _close(expected: float, actual: float, tolerance: Tolerance) -> bool:
    if math.isinf(expected) or math.isinf(actual):
        return expected == actual
    return math.isclose(expected, actual, rel_tol=tolerance.relative, abs_tol=tolerance.absolute)


def same_value(
    expected: Tree,
    actual: Tree,
    comparison: Comparison,
    *,
    tuples_are_lists: bool = False,
    tolerance: Tolerance = TOLERANCE,
) -> bool:
    """As `==` of Python has it: 1, 1.0 and True are the same, a list and a tuple are not, unless `tuples_are_lists`
    says that the expected value comes from JSON. NaN is the same as NaN, so that it can be expected."""
    return _Values(comparison, tuples_are_lists, tolerance).same(expected, actual)


_RANK = {"number": 0, "text": 1, "s": 2, "b": 3, "l": 4, "t": 5, "e": 6, "d": 7, "none": 8}


class _Values:
    def __init__(self, comparison: Comparison, tuples_are_lists: bool, tolerance: Tolerance) -> None:
        self._comparison = comparison
        self._tolerance = tolerance
        self._tuples_are_lists = tuples_are_lists
        self._keys: dict[int, tuple[Any, ...]] = {}
        """Sort key of each tree that was asked for, by identity: each is made once, however deep sets lie in sets."""

    def same(self, expected: Tree, actual: Tree) -> bool:
        expected, actual = _without_kind(expected), _without_kind(actual)
        kind = self._kind(expected)
        if kind != self._kind(actual):
            return False
        match kind:
            case "none":
                return True
            case "number":
                return self._same_number(_number(expected), _number(actual))
            case "text":
                return self._same_text(expected, actual)
            case "s" | "b":
                return bool(expected[1] == actual[1])
            case "l" | "t":
                return self._same_items(expected[1], actual[1])
            case "e":
                return self._same_sets(expected[1], actual[1])
        return self._same_dicts(expected, actual)

    def _kind(self, tree: Tree) -> str:
        if tree is None:
            return "none"
        if type(tree) is str:
            return "text"
        if type(tree) is not list:
            return "number"
        tag = str({"i": "number", "c": "number", "z": "e"}.get(tree[0], tree[0]))
        return "l" if tag == "t" and self._tuples_are_lists else tag

    def _same_number(self, expected: Any, actual: Any) -> bool:
        if expected == actual or (expected != expected and actual != actual):
            return True
        if self._comparison is not Comparison.FLOAT or _INEXACT.isdisjoint((type(expected), type(actual))):
            return False
        try:
            if complex in (type(expected), type(actual)):
                pairs = zip(_parts(complex(expected)), _parts(complex(actual)), strict=True)
                return all(_close(wanted, got, self._tolerance) for wanted, got in pairs)
            return _close(float(expected), float(actual), self._tolerance)
        except OverflowError:  # an int that no float holds is close to none
            return False

    def _same_text(self, expected: str, actual: str) -> bool:
        if expected == actual or self._comparison is Comparison.EXACT:
            return expected == actual
        return same_text(expected.encode(), actual.encode(), self._comparison, self._tolerance)

    def _same_items(self, expected: list[Tree], actual: list[Tree]) -> bool:
        return len(expected) == len(actual) and all(self.same(a, b) for a, b in zip(expected, actual, strict=True))

    def _same_sets(self, expected: list[Tree], actual: list[Tree]) -> bool:
        if len(expected) != len(actual):
            return False
        return self._same_items(sorted(expected, key=self._order), sorted(actual, key=self._order))

    def _same_dicts(self, expected: Tree, actual: Tree) -> bool:
        if len(expected[1]) != len(actual[1]):
            return False
        return all(
            self.same(key, other_key) and self.same(value, other_value)
            for (key, value), (other_key, other_value) in zip(
                self._entries(expected), self._entries(actual), strict=True
            )
        )

    def _entries(self, tree: Tree) -> list[tuple[Tree, Tree]]:
        """By key. Of equal keys, which a forged text can have, all stay: it then has more than the expected value."""
        return sorted(zip(tree[1], tree[2], strict=True), key=lambda entry: self._order(entry[0]))

    def _order(self, tree: Tree) -> tuple[Any, ...]:
        """Equal values have equal keys, and all keys can be compared."""
        if type(tree) is not list:
            return self._key(tree)
        key = self._keys.get(id(tree))
        if key is None:
            key = self._keys[id(tree)] = self._key(tree)
        return key

    def _key(self, tree: Tree) -> tuple[Any, ...]:
        kind = self._kind(tree)
        rank = _RANK[kind]
        match kind:
            case "none":
                return (rank,)
            case "number":
                number = _number(tree)
                real, imag = _parts(number) if type(number) is complex else (number, 0)
                return (rank, number != number, *((0, 0) if number != number else (real, imag)))
            case "text":
                return (rank, tree)
            case "s" | "b":
                return (rank, tree[1])
            case "d":
                return (rank, tuple((self._order(key), self._order(value)) for key, value in self._entries(tree)))
            case "e":
                return (rank, tuple(sorted(self._order(item) for item in tree[1])))
        return (rank, tuple(self._order(item) for item in tree[1]))


def _number(tree: Tree) -> Any:
    if type(tree) is not list:
        return tree
    return complex_of(tree[1]) if tree[0] == "c" else int(tree[1], 16)


def _parts(number: complex) -> tuple[float, float]:
    return number.real, number.imag


def _without_kind(tree: Tree) -> Tree:
    """An array as the lists that it holds."""
    return tree[2] if type(tree) is list and tree[0] == "n" else tree
