"""Plain values in the server: parsed, never built. What a candidate returned is kept as the tree of its text.

A tree is what JSON makes of the text of `sandbox.inside.values`: scalars, and arrays that begin with a tag. Invariants:
a tree that `parse` has returned is well-formed and bounded; nothing here hashes a value of a candidate (colliding
integers would cost minutes) or calls a method of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from executor_service.sandbox.inside.values import MAX_BYTES, MAX_DEPTH, MAX_NODES

Tree = Any
"""None, bool, int, float, str, or [tag, ...]."""
ARGUMENT_DEPTH = 3
"""Depth at which `call_text` puts an argument."""


class Malformed(ValueError):  # noqa: N818 - a fact about a text
    """The text is no plain value; the sentence says where and why."""


def parse(text: bytes, *, depth: int = 0, parts: list[int] | None = None) -> Tree:
    """The tree of a text. Malformed for anything that is not plain data, references included.

    `depth` is where the tree will be put within another one. `parts` counts those of several texts together.
    """
    if len(text) > MAX_BYTES:
        raise Malformed(f"a value of {len(text)} bytes is too large, at most {MAX_BYTES} are allowed")
    try:
        tree = json.loads(text)
        _check(tree, depth, [0] if parts is None else parts)
    except RecursionError:
        raise Malformed(f"a value is nested more than {MAX_DEPTH} deep") from None
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed(str(error)) from None
    return tree


def _check(tree: Tree, depth: int, count: list[int], *, hashed: bool = False) -> None:
    """`hashed`: it is a key or a member of a set, or part of one."""
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
        case ["l" | "e" | "d", *_] if hashed:
            raise Malformed("a list, set or dict can't be hashed, so it is no key and no member of a set")
        case ["l" | "t" | "e" | "z" as tag, list(items)]:
            for item in items:
                _check(item, depth + 1, count, hashed=hashed or tag in ("e", "z"))
        case ["d", list(keys), list(items)] if len(keys) == len(items):
            for item in keys:
                _check(item, depth + 1, count, hashed=True)
            for item in items:
                _check(item, depth + 1, count)
        case ["o", int(), bool(), str(name), *_]:
            raise Malformed(f"an object of type {name[:100]} is not plain data")
        case ["r", str(name)]:
            raise Malformed(f"the type {name[:100]} is not plain data")
        case ["x", *_]:
            raise Malformed("an exception class is not plain data")
        case _:
            raise Malformed("an array has no known tag")


def call_text(name: str, arguments: Sequence[Tree], keywords: Mapping[str, Tree]) -> bytes:
    """Arguments of an `ask` to call an entry point: [[name, arguments, keywords], {}]."""
    kwargs = ["d", list(keywords), list(keywords.values())]
    return json.dumps(["l", [["l", [name, ["l", list(arguments)], kwargs]], ["d", [], []]]]).encode()
