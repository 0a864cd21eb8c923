"""Calls as the model wrote them, and what every format of them shares. Pure.

A call that is not in order is not dropped: it is returned with what is wrong and where, so that the model can be told.
Closed thoughts hold no calls; after an unclosed one calls still count. What stands around the calls is not
judged, and neither is whether the tool exists.

A model may write anything, so reading takes time in proportion to the text: a turn has at most MAX_CALLS calls, and the
next one, if there are more, is answered as malformed in place of all the rest.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Any, NoReturn, Protocol

from rollout.tokens.conversation import CallRef

MAX_CALLS = 64
"""Calls of one turn that are read: far more than any task needs at once, and few enough that looking once through the
text for each of them takes milliseconds."""
MAX_DEPTH = 64
"""Levels of lists and objects in a call's arguments: what is deeper can't be written as JSON again at any place."""
THINK = ("<think>", "</think>")
"""Marks around a thought, in most families."""
_SPACE = re.compile(r"\s*")
_NEAR = 24
"""Characters shown on each side of a JSON error."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in order."""

    name: str
    arguments: dict[str, Any]
    raw: str
    """The text of the call, without the marks around it."""
    call_id: str | None = None
    """The id that the model gave it; None where the format has none."""

    @property
    def ref(self) -> CallRef:
        """The reference to the call that the chat template gets with the answer."""
        return CallRef(self.name, self.call_id)


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A call that can't be understood."""

    problem: str
    """The problem and its place, for the model: a clause without a full stop."""
    raw: str
    """The text from behind the opening mark up to the end of the call."""
    name: str = ""
    """Empty when it can't be told."""

    @property
    def ref(self) -> CallRef:
        """The reference to the call that the chat template gets with the answer."""
        return CallRef(self.name)


class ToolCallFormat(Protocol):
    """The format in which a family of models writes its calls. The chat template decides how they are answered."""

    @property
    def name(self) -> str:
        """As the setting `tool_format` has it."""
        ...

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall | MalformedCall, ...]:
        """Every call of a turn, in order. `tools` are OpenAI function schemas. Never raises."""
        ...


def bounded(calls: Iterator[ToolCall | MalformedCall]) -> tuple[ToolCall | MalformedCall, ...]:
    """The first MAX_CALLS of them, and if there are more, one that says so: the others are not even read."""
    read = tuple(islice(calls, MAX_CALLS))
    for more in calls:
        problem = f"a turn may make at most {MAX_CALLS} calls, and this call and all after it were not read"
        return (*read, MalformedCall(problem, more.raw))
    return read


def without_thoughts(text: str) -> str:
    """A text without its closed `<think>` blocks."""
    kept, position = [], 0
    while (start := text.find("<think>", position)) >= 0 and (end := text.find("</think>", start)) >= 0:
        kept.append(text[position:start])
        position = end + len("</think>")
    return "".join((*kept, text[position:]))


@dataclass(frozen=True, slots=True)
class MarkedCalls(ABC):
    """The base of formats whose calls stand between marks. A format is a row of what stands where."""

    name: str
    opening: str
    closing: str = ""
    """The mark behind a call; empty: there is none."""
    _: KW_ONLY
    stops: tuple[str, ...] = ()
    """Marks beside `opening` and `closing` before which a broken call ends."""
    thought: tuple[str, str] = THINK
    around: tuple[str, ...] = ()
    """Marks around all calls of a turn."""
    frame: re.Pattern[str] | None = None
    """Marks of the messages that a turn consists of, which are no part of what is said."""

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall | MalformedCall, ...]:
        """The calls of a turn, in order, at most MAX_CALLS. Never raises."""
        return bounded(self._read(text, tools))

    @abstractmethod
    def _read(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall | MalformedCall]:
        """Yields the calls, in order."""

    def _next(self, text: str, position: int) -> int | None:
        """End of the next opening mark that is not inside a closed thought."""
        begins, ends = self.thought
        found = text.find(self.opening, position)
        while found >= 0:
            think = text.find(begins, position, found + len(begins))
            end = -1 if think < 0 else text.find(ends, think)
            if think < 0 or think > found or end < 0:
                return found + len(self.opening)
            position = end + len(ends)
            if position > found:
                found = text.find(self.opening, position)
        return None

    def _stop(self, text: str, start: int) -> int:
        """End of a call that can't be read."""
        found = (text.find(mark, start) for mark in (self.closing, self.opening, *self.stops) if mark)
        return min((end for end in found if end >= 0), default=len(text))


def read_json(text: str, start: int) -> tuple[Any, int, Exception | None]:
    """(value, where it ends, error) of the JSON value at `start`, white space before it skipped."""
    try:
        value, end = _DECODER.raw_decode(text, skip_space(text, start))
    except (ValueError, RecursionError) as error:
        return None, start, error
    return value, end, None


def json_problem(error: Exception, text: str, begin: int, end: int, *, cut_off: bool) -> str:
    """Says what is wrong with the JSON in `text[begin:end]`. `cut_off`: nothing closes the call."""
    if not isinstance(error, json.JSONDecodeError):
        return f"its JSON can't be read: {error}" if isinstance(error, ValueError) else "its JSON is nested too deeply"
    if begin >= end:
        return "it is empty"
    if error.pos >= len(text) or (error.msg.startswith("Unterminated string") and cut_off):
        return "its JSON is cut off"
    line = text.count("\n", begin, error.pos) + 1
    column = error.pos - max(text.rfind("\n", begin, error.pos) + 1, begin) + 1
    near = text[max(begin, error.pos - _NEAR) : min(end, error.pos + _NEAR)]
    return f"its JSON is wrong at line {line}, column {column}, near {shorten(near)}: {error.msg}"


@dataclass(frozen=True, slots=True)
class CallKeys:
    """Keys of a call that is a JSON object."""

    name: str = "name"
    arguments: str = "arguments"
    call_id: str = "id"


KEYS = CallKeys()
"""The usual ones."""


def checked_call(value: Any, raw: str, keys: CallKeys = KEYS) -> ToolCall | MalformedCall:
    """The call that a JSON value with a name and arguments is."""
    if not isinstance(value, dict):
        return MalformedCall(f"it must be a JSON object, but is {_kind(value)}", raw)
    name, arguments = value.get(keys.name), value.get(keys.arguments, {})
    if keys.name not in value:
        return MalformedCall(f'"{keys.name}" is missing', raw)
    if not isinstance(name, str) or not name:
        return MalformedCall(f'"{keys.name}" must be the name of a function, but is {_kind(name)}', raw)
    if not isinstance(arguments, dict):
        return MalformedCall(f'"{keys.arguments}" must be a JSON object, but is {_kind(arguments)}', raw, name)
    if is_deep(arguments):
        return MalformedCall("its JSON is nested too deeply", raw, name)
    call_id = value.get(keys.call_id)
    return ToolCall(name, arguments, raw, call_id if isinstance(call_id, str) and call_id else None)


def is_deep(value: Any) -> bool:
    """Says whether lists and objects lie in one another for more than MAX_DEPTH levels."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict | list):
                inner.extend(each.values() if isinstance(each, dict) else each)
        level = inner
    return bool(level)


def skip_space(text: str, start: int) -> int:
    """End of the white space that begins at `start`."""
    match = _SPACE.match(text, start)
    assert match is not None
    return match.end()


def shorten(text: str) -> str:
    """A text in one line and in quotes, cut where it is long."""
    text = " ".join(text.split())
    return f'"{text}"' if len(text) <= 2 * _NEAR else f'"{text[: 2 * _NEAR]}..."'


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    if value == "":
        return "an empty string"
    return names.get(type(value), "a number")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
