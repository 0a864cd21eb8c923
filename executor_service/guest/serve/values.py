"""Plain values as text: how arguments and results cross between two sandboxes. Never pickle.

A value is JSON: None, bool, str, float and ints of 64 bits are themselves, everything else is an array whose first
entry is a tag: `i` other ints (hexadecimal), `c` a complex number (its two parts), `s` a str with surrogates and `b`
bytes (hexadecimal), `l` list, `t` tuple, `e` set, `z` frozenset, `d` dict (keys, values), `n` an array of numpy (kind
and bytes of an item, then what it holds as lists). `o`, `x` and `r` are references, for those who exchange such.

Invariants: what is decoded consists of the exact built-in types, and of arrays of numbers (lists, where numpy is not
installed), so no code of the sender runs at the receiver; depth, count and size are bounded on both sides; text that is
not of this form is ValueError.
"""

from __future__ import annotations

import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_DEPTH = 100
"""Nesting. The recursion of both sides stays far below the interpreter's limit."""
MAX_NODES = 1 << 20
"""Values within a value; shared ones count each time."""
MAX_BYTES = 16 << 20
"""Length of the text: a list of a million numbers takes some ten megabytes."""
ARRAYS = frozenset(("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"))
"""Kinds of arrays that cross: their items are numbers."""
_COMPLEX = 64
"""Characters of the two parts of a complex number."""
_INT64 = 1 << 63


class NotPlain(Exception):
    """The value is too deep or too large to cross; the text says which."""


class Foreign(NotPlain):
    """The value is of a type that can't cross."""


def encode(value: Any, export: Callable[[Any], list[Any]] | None = None) -> bytes:
    """The text of `value`. `export` makes a reference of what is not plain; without it, that is Foreign."""
    text = json.dumps(_Encoder(export).tree(value, 0)).encode()
    if len(text) > MAX_BYTES:
        raise NotPlain(f"a value of {len(text)} bytes is too large to cross, at most {MAX_BYTES} are allowed")
    return text


def decode(text: bytes, resolve: Callable[[list[Any]], Any] | None = None) -> Any:
    """The value of `text`. `resolve` is given each reference. ValueError for anything else."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"a value of {len(text)} bytes is too large")
    try:
        return _Decoder(resolve).value(json.loads(text), 0)
    except RecursionError:
        raise ValueError("a value is nested too deeply") from None


def complex_of(text: str) -> complex:
    """Reads the two parts of a complex number. ValueError for what is none, or longer than any."""
    real, mark, imag = text.partition(" ")
    if len(text) > _COMPLEX or not mark:
        raise ValueError("a complex number is two numbers")
    return complex(float(real), float(imag))


class _Encoder:
    def __init__(self, export: Callable[[Any], list[Any]] | None) -> None:
        self._export = export
        self._nodes = 0

    def tree(self, value: Any, depth: int) -> Any:
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise NotPlain(f"a value nested more than {MAX_DEPTH} deep can't cross")
        if self._nodes > MAX_NODES:
            raise NotPlain(f"a value of more than {MAX_NODES} parts can't cross")
        kind = type(value)
        if value is None or kind is bool or kind is float:
            return value
        if kind is int:
            return value if -_INT64 <= value < _INT64 else ["i", hex(value)]
        if kind is str:
            return _text(value)
        if kind is bytes:
            return ["b", value.hex()]
        if kind is complex:
            return ["c", f"{value.real!r} {value.imag!r}"]
        for base, tag in _SEQUENCES:
            if kind is base:
                return [tag, [self.tree(item, depth + 1) for item in value]]
        if kind is dict:
            keys = [self.tree(key, depth + 1) for key in value]
            return ["d", keys, [self.tree(item, depth + 1) for item in value.values()]]
        if array := _array_kind(value):
            return ["n", array, self.tree(value.tolist(), depth + 1)]
        plain = _reduced(value)
        if plain is not value:
            return self.tree(plain, depth)
        if self._export is None:
            raise Foreign(f"a value of type {kind.__module__}.{kind.__qualname__} is not plain data")
        return self._export(value)


_SEQUENCES = ((list, "l"), (tuple, "t"), (set, "e"), (frozenset, "z"))


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return ["s", value.encode("utf-8", "surrogatepass").hex()]
    return value


def _array_kind(value: Any) -> str:
    """Kind of an array of numpy that can cross; empty for all else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not getattr(numpy, "ndarray", None):
        return ""
    kind = f"{value.dtype.kind}{value.dtype.itemsize}"
    return kind if kind in ARRAYS else ""


def _array(kind: str, value: Any) -> Any:
    if kind not in ARRAYS:
        raise ValueError(f"{kind[:20]!r} is no kind of an array that can cross")
    try:
        import numpy  # type: ignore[import-not-found,unused-ignore]  # here: only few values need it
    except ImportError:
        return value
    try:
        return numpy.array(value, dtype=kind)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"that is no array: {error}") from None


def _reduced(value: Any) -> Any:
    """An instance of a subclass as the plain type that it extends, a numpy scalar as its Python value."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        item = value.item()
        return value if isinstance(item, numpy.generic) else item
    kind = type(value)
    for base, reduce in _REDUCE:
        if issubclass(kind, base):
            return reduce(value)
    return value


_REDUCE: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, lambda value: int.__add__(value, 0)),
    (float, float.__float__),
    (complex, complex.__pos__),
    (str, str.__str__),
    (bytes, lambda value: bytes.__add__(value, b"")),
    (list, lambda value: [*list.__iter__(value)]),
    (tuple, lambda value: (*tuple.__iter__(value),)),
    (set, lambda value: {*set.__iter__(value)}),
    (frozenset, lambda value: frozenset({*frozenset.__iter__(value)})),
    (dict, lambda value: dict(dict.items(value))),
)
"""By the methods of the base, so that those of the subclass are not asked."""


class _Decoder:
    def __init__(self, resolve: Callable[[list[Any]], Any] | None) -> None:
        self._resolve = resolve
        self._nodes = 0

    def value(self, tree: Any, depth: int) -> Any:
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise ValueError("a value is too deep or has too many parts")
        if tree is None or type(tree) in (bool, int, float, str):
            return tree
        match tree:
            case ["i", str(text)]:
                return int(text, 16)
            case ["c", str(text)]:
                return complex_of(text)
            case ["n", str(kind), items]:
                return _array(kind, self.value(items, depth + 1))
            case ["s", str(text)]:
                return bytes.fromhex(text).decode("utf-8", "surrogatepass")
            case ["b", str(text)]:
                return bytes.fromhex(text)
            case ["l", list(items)]:
                return [self.value(item, depth + 1) for item in items]
            case ["t", list(items)]:
                return tuple([self.value(item, depth + 1) for item in items])
            case ["e", list(items)]:
                return {self._key(item, depth + 1) for item in items}
            case ["z", list(items)]:
                return frozenset([self._key(item, depth + 1) for item in items])
            case ["d", list(keys), list(items)] if len(keys) == len(items):
                pairs = zip(keys, items, strict=True)
                return {self._key(key, depth + 1): self.value(item, depth + 1) for key, item in pairs}
            case ["o" | "x" | "r", *_] if self._resolve is not None:
                return self._resolve(tree)
        raise ValueError(f"{str(tree)[:80]} is no value")

    def _key(self, tree: Any, depth: int) -> Any:
        value = self.value(tree, depth)
        try:
            hash(value)
        except TypeError:
            raise ValueError("a key or member can't be hashed") from None
        return value
