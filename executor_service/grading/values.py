"""Plain values in the server: parsed, never built. What a candidate returned is kept as the tree of its text.

A tree is what JSON makes of the text of `sandbox.inside.values`: scalars, and arrays that begin with a tag. Invariants:
a tree that `parse` has returned is well-formed and bounded; nothing here hashes a value of a candidate (colliding
integers would cost minutes) or calls a method of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from executor_service.sandbox.inside.values import MAX_BYTES, MAX_DEPTH, MAX_NODES, NotPlain, encode
from executor_service.v1 import executor_pb2 as pb

__all__ = [
    "MAX_PROTO_DEPTH",
    "Malformed",
    "NotPlain",
    "Tree",
    "call_text",
    "from_json",
    "from_proto",
    "parse",
    "proto_from_plain",
    "text_from_proto",
    "to_proto",
]

Tree = Any
"""None, bool, int, float, str, or [tag, ...]."""
MAX_PROTO_DEPTH = 40
"""Nesting of values in messages: protobuf itself ends at 100 messages, and each level is two."""
_MAX_DIGITS = 4300
"""Decimal digits of an int in messages: where Python itself stops to convert, because the time is quadratic."""
_INT64 = 1 << 63
_SEQUENCES = {"l": "list", "t": "tuple", "e": "set", "z": "set"}


class Malformed(ValueError):  # noqa: N818 - a fact about a text
    """The text or message is no plain value; the sentence says where and why."""


def parse(text: bytes) -> Tree:
    """The tree of a candidate's text. Malformed for anything that is not plain data, references included."""
    if len(text) > MAX_BYTES:
        raise Malformed(f"a value of {len(text)} bytes is too large, at most {MAX_BYTES} are allowed")
    try:
        tree = json.loads(text)
        _check(tree, 0, [0])
    except RecursionError:
        raise Malformed(f"a value is nested more than {MAX_DEPTH} deep") from None
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed(f"no value: {error}") from None
    return tree


def _check(tree: Tree, depth: int, count: list[int]) -> None:
    count[0] += 1
    if depth > MAX_DEPTH or count[0] > MAX_NODES:
        raise Malformed(f"a value is nested more than {MAX_DEPTH} deep, or has more than {MAX_NODES} parts")
    if tree is None or type(tree) in (bool, int, float):
        return
    if type(tree) is str:
        tree.encode()  # one with surrogates has a tag
        return
    match tree:
        case ["i", str(text)]:
            int(text, 16)
        case ["s", str(text)]:
            bytes.fromhex(text).decode("utf-8", "surrogatepass")
        case ["b", str(text)]:
            bytes.fromhex(text)
        case ["l" | "t" | "e" | "z", list(items)]:
            for item in items:
                _check(item, depth + 1, count)
        case ["d", list(keys), list(items)] if len(keys) == len(items):
            for item in (*keys, *items):
                _check(item, depth + 1, count)
        case ["o", int(), bool(), str(name), *_]:
            raise Malformed(f"an object of type {name[:100]} is not plain data")
        case ["r", str(name)]:
            raise Malformed(f"the type {name[:100]} is not plain data")
        case ["x", *_]:
            raise Malformed("an exception class is not plain data")
        case _:
            raise Malformed("an array has no known tag")


def from_json(value: Any) -> Tree:
    """The tree of what a JSON text says: arrays are lists, objects are dicts with text keys."""
    if isinstance(value, list):
        return ["l", [from_json(item) for item in value]]
    if isinstance(value, dict):
        return ["d", [_text(key) for key in value], [from_json(item) for item in value.values()]]
    if type(value) is int and not -_INT64 <= value < _INT64:
        return ["i", hex(value)]
    return _text(value) if isinstance(value, str) else value


def from_proto(message: pb.Value, depth: int = 0) -> Tree:
    """The tree of a message. Malformed where it has no kind or a bad part."""
    if depth > MAX_PROTO_DEPTH:
        raise Malformed(f"is nested more than {MAX_PROTO_DEPTH} deep")
    kind = message.WhichOneof("kind")
    if kind is None or (kind == "none" and not message.none):
        raise Malformed("has no kind, must have exactly one" if kind is None else "has none = false, must be true")
    if kind == "none":
        return None
    return _FROM_PROTO[kind](getattr(message, kind), depth + 1)


def _sequence(tag: str) -> Callable[[pb.Values, int], Tree]:
    return lambda values, depth: [tag, [from_proto(item, depth) for item in values.values]]


def _dict(entries: pb.Entries, depth: int) -> Tree:
    if len(entries.keys) != len(entries.values):
        raise Malformed(f"has {len(entries.keys)} keys and {len(entries.values)} values, must have as many of each")
    for key in entries.keys:
        if key.WhichOneof("kind") in ("list", "dict"):
            raise Malformed("has a list or dict as a key, which can't be hashed")
    return ["d", [from_proto(k, depth) for k in entries.keys], [from_proto(v, depth) for v in entries.values]]


def _set(values: pb.Values, depth: int) -> Tree:
    if any(item.WhichOneof("kind") in ("list", "dict") for item in values.values):
        raise Malformed("has a list or dict as a member of a set, which can't be hashed")
    return _sequence("e")(values, depth)


def _big(text: str, _: int) -> Tree:
    if len(text) > _MAX_DIGITS or not text.removeprefix("-").isdecimal() or not text.isascii():
        raise Malformed(f"has big_integer {text[:40]!r}, must be at most {_MAX_DIGITS} decimal digits")
    return ["i", hex(int(text))]


def _surrogates(data: bytes, _: int) -> Tree:
    try:
        return _text(data.decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError:
        raise Malformed("has surrogate_text that is not UTF-8 with surrogates") from None


def _text(value: str) -> Tree:
    try:
        value.encode()
    except UnicodeEncodeError:
        return ["s", value.encode("utf-8", "surrogatepass").hex()]
    return value


_FROM_PROTO: dict[str, Callable[[Any, int], Tree]] = {
    "boolean": lambda value, _: value,
    "integer": lambda value, _: value,
    "real": lambda value, _: value,
    "text": lambda value, _: value,
    "big_integer": _big,
    "surrogate_text": _surrogates,
    "data": lambda value, _: ["b", value.hex()],
    "list": _sequence("l"),
    "tuple": _sequence("t"),
    "set": _set,
    "dict": _dict,
}


def to_proto(tree: Tree, depth: int = 0) -> pb.Value:
    """The message of a tree. Malformed where a message can't hold it: too deep, or an int of too many digits."""
    if depth > MAX_PROTO_DEPTH:
        raise Malformed(f"is nested more than {MAX_PROTO_DEPTH} deep")
    if tree is None:
        return pb.Value(none=True)
    if type(tree) is not list:
        return _scalar_to_proto(tree)
    tag, *parts = tree
    if tag == "i":
        number = int(parts[0], 16)
        if number.bit_length() > _MAX_DIGITS * 3:
            raise Malformed(f"is an int of more than {_MAX_DIGITS} digits")
        return pb.Value(integer=number) if -_INT64 <= number < _INT64 else pb.Value(big_integer=str(number))
    if tag == "s":
        return pb.Value(surrogate_text=bytes.fromhex(parts[0]))
    if tag == "b":
        return pb.Value(data=bytes.fromhex(parts[0]))
    lists = [[to_proto(item, depth + 1) for item in part] for part in parts]
    if tag == "d":
        return pb.Value(dict=pb.Entries(keys=lists[0], values=lists[1]))
    return pb.Value(**{_SEQUENCES[tag]: pb.Values(values=lists[0])})  # type: ignore[arg-type]


def _scalar_to_proto(value: bool | int | float | str) -> pb.Value:
    if type(value) is bool:
        return pb.Value(boolean=value)
    if type(value) is int:
        return pb.Value(integer=value) if -_INT64 <= value < _INT64 else to_proto(["i", hex(value)])
    if type(value) is float:
        return pb.Value(real=value)
    assert type(value) is str
    tree = _text(value)
    return pb.Value(text=value) if tree is value else to_proto(tree)


def call_text(name: str, arguments: Sequence[Tree], keywords: Mapping[str, Tree]) -> bytes:
    """Arguments of an `ask` to call an entry point: [[name, arguments, keywords], {}]."""
    kwargs = ["d", list(keywords), list(keywords.values())]
    return json.dumps(["l", [["l", [name, ["l", list(arguments)], kwargs]], ["d", [], []]]]).encode()


def proto_from_plain(value: Any) -> pb.Value:
    """The message of a Python value. NotPlain or Malformed where it is not plain data."""
    return to_proto(json.loads(encode(value)))


def text_from_proto(message: pb.Value) -> bytes:
    """The text of a message's value."""
    return json.dumps(from_proto(message)).encode()
