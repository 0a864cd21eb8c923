"""Finds the text of a sample that is its answer, and names what is in it by the ids of the data.

    file     path/to/file.py
    module   path/to/file.py:Class          or path/to/file.py:function
    entity   path/to/file.py:Class.method   or path/to/file.py:function

Paths are compared as they stand; the dialect decides whether a leading `./` is dropped first. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rollout.loop.limits import StopReason
from rollout.rewards.base import Sample
from rollout.rewards.reasoning import split_reasoning

_FINISH = "finish"
"""OpenHands' tool that ends a conversation with a message."""
_ASKED = (StopReason.TURNS, StopReason.TOOL_CALLS)
"""Stop reasons after which the last turn asked for a tool whose call was not run."""
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
    """A parsed answer. Every answer gives one, without an error: parts that can't be understood are left out."""

    found: bool = False
    """True if the marks of an answer in its dialect are there at all."""
    files: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    entities: frozenset[str] = frozenset()
    lines: tuple[LineSpan, ...] = ()


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


def strip_dot_slash(path: str) -> str:
    """`./a.py` as `a.py`, with white space around it dropped."""
    return path.strip().removeprefix("./")


def between(text: str, opening: str, closing: str) -> str | None:
    """Text between the first `opening` and the first `closing` after it; None if either is missing."""
    _, opened, rest = text.partition(opening)
    inner, closed, _ = rest.partition(closing)
    return inner if opened and closed else None


def last_turn(sample: Sample) -> str:
    """The assistant's last turn as it was sampled, calls and thoughts included; empty if there is none."""
    said_by = (message["content"] for message in reversed(sample.messages) if message["role"] == "assistant")
    return next(said_by, "") if sample.messages and sample.turns else sample.text


def said(sample: Sample) -> str:
    """The last turn without its thoughts."""
    return split_reasoning(last_turn(sample))[1]


def final_message(sample: Sample) -> str:
    """The assistant's message to the user: that of its last call of `finish`, else its last turn if that calls no tool,
    else empty. Without thoughts."""
    for call in reversed(sample.tool_calls):
        message = (call.arguments or {}).get("message")
        if call.name == _FINISH and isinstance(message, str):
            return message
    if sample.stop_reason in _ASKED or any(call.turn == sample.turns for call in sample.tool_calls):
        return ""
    return said(sample)
