"""Names in an answer: files, modules, entities and lines of a repository, in the ids of the data.

    file     path/to/file.py
    module   path/to/file.py:Class          or path/to/file.py:function
    entity   path/to/file.py:Class.method   or path/to/file.py:function

Paths are compared as they stand; the dialect decides whether a leading `./` is dropped first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_LINE = 10**9
"""Lines beyond it are no lines of a file, and sums stay exact in a float."""


@dataclass(frozen=True, slots=True)
class LineSpan:
    """Lines `first` to `last` of a file, from 1, both included."""

    file: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Location:
    """One place, as dialects with classes and functions name it."""

    file: str
    class_name: str | None = None
    function_name: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A parsed answer. Every answer gives one, without an error: parts that can't be understood are in `problems`."""

    found: bool = False
    """True if the marks of an answer in its dialect are there at all."""
    files: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    entities: frozenset[str] = frozenset()
    lines: tuple[LineSpan, ...] = ()
    problems: tuple[str, ...] = ()
    """Parts left out, and why, a clause each; at most a few, so that an answer of nothing but mistakes is small."""


def module_id(location: Location) -> str | None:
    """The class, or else the function; None of a file alone."""
    name = location.class_name or location.function_name
    return f"{location.file}:{name}" if name else None


def entity_id(location: Location) -> str | None:
    """The function, with its class if it has one; None if no function is named."""
    if not location.function_name:
        return None
    prefix = f"{location.class_name}." if location.class_name else ""
    return f"{location.file}:{prefix}{location.function_name}"


def present(ids: Iterable[str | None]) -> frozenset[str]:
    """The ids that are not None."""
    return frozenset(each for each in ids if each is not None)


class Problems:
    """Collects what is wrong with an answer, bounded."""

    MOST = 5

    def __init__(self) -> None:
        self._first: list[str] = []
        self._count = 0

    def add(self, problem: str) -> None:
        self._count += 1
        if len(self._first) < self.MOST:
            self._first.append(problem)

    def all(self) -> tuple[str, ...]:
        more = self._count - len(self._first)
        return (*self._first, *([f"and {more} more"] if more else []))


def strip_dot_slash(path: str) -> str:
    """`./a.py` as `a.py`, with white space around it dropped."""
    return path.strip().removeprefix("./")


def between(text: str, opening: str, closing: str) -> str | None:
    """Text between the first `opening` and the first `closing` after it; None if either is missing."""
    _, opened, rest = text.partition(opening)
    inner, closed, _ = rest.partition(closing)
    return inner if opened and closed else None
