"""Source around a candidate's own, put there before grading. Pure."""

from __future__ import annotations

import ast

IMPORTS = """\
import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, string, sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, nlargest, nsmallest
from itertools import accumulate, chain, combinations, count, groupby, permutations, product
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, lcm, log, log2, sqrt
from typing import *
"""
"""Imports that solutions on LeetCode and the like take for granted. None of them replaces a built-in name, as a star of
`math` would replace `pow`."""


def parsed(source: str) -> ast.Module | None:
    """Parses a source; None if it is no Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def after_future(before: str, source: str) -> str:
    """`before`, then `source`, whose `from __future__` imports stay first."""
    tree = parsed(source)
    future = [
        node.end_lineno or node.lineno
        for node in (tree.body if tree else ())
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    lines = source.splitlines(keepends=True)
    first = max(future, default=0)
    return "".join(lines[:first]) + before + "\n" + "".join(lines[first:])


def defines(source: str, name: str) -> bool:
    """Says whether a function or class of this name, or a value, is at the top of the source."""
    tree = parsed(source)
    return tree is not None and any(_name_of(node, name) for node in tree.body)


def entry_of(source: str, name: str) -> str:
    """`name`, or `Solution.name` if only that class has it."""
    tree = parsed(source)
    for node in tree.body if tree and not any(_name_of(node, name) for node in tree.body) else ():
        if isinstance(node, ast.ClassDef) and node.name == "Solution" and any(_name_of(n, name) for n in node.body):
            return f"Solution.{name}"
    return name


def _name_of(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name == name
        case ast.Assign():
            return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        case ast.Import() | ast.ImportFrom():
            return any((alias.asname or alias.name) == name for alias in node.names)
    return False
