"""Tool calls that are JSON behind a mark: the formats of Hermes and Qwen, of Mistral, and of DeepSeek. Pure.

Hermes and Qwen write an object in tags (a `</tool_call>` inside a JSON string is part of the string):

    <tool_call>
    {"name": "code_interpreter", "arguments": {"code": "print(1)"}}
    </tool_call>

Mistral up to its tokenizer v7 writes a list, later versions a name and arguments per call:

    [TOOL_CALLS][{"name": "code_interpreter", "arguments": {"code": "print(1)"}, "id": "a1B2c3D4e"}]
    [TOOL_CALLS]code_interpreter[CALL_ID]a1B2c3D4e[ARGS]{"code": "print(1)"}

DeepSeek V3 and R1 write a type, the name and fenced JSON, V3.1 the name and JSON:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>code_interpreter
    ```json
    {"code": "print(1)"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>code_interpreter<｜tool▁sep｜>{"code": "print(1)"}<｜tool▁call▁end｜>...
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.tools.formats.calls import (
    MalformedCall,
    ToolCall,
    bounded,
    checked_call,
    json_problem,
    openings,
    read_json,
    shorten,
    skip_space,
)

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class MarkedFormat:
    """One format, by what stands around the JSON."""

    name: str
    opening: str
    closing: str = ""
    """The mark that must follow the JSON; empty: nothing must."""
    stops: tuple[str, ...] = ()
    """Marks beside `opening` and `closing` before which a broken call ends."""
    head: re.Pattern[str] | None = None
    """Text before the JSON of arguments, with the groups `name` or `fenced`, and `id`. If it is None, or not there,
    the JSON has the name itself."""
    headless: str = ""
    """Problem of a call without the head; empty if it needs none."""
    lists: bool = False
    """Says whether a list of calls may follow the opening."""
    between: re.Pattern[str] = _SPACE
    """Text that may stand between the JSON and the closing mark."""

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall | MalformedCall, ...]:
        """The calls of a turn, in order, at most MAX_CALLS. Never raises."""
        return bounded(self._read(text))

    def _read(self, text: str) -> Iterator[ToolCall | MalformedCall]:
        opening = re.compile(re.escape(self.opening))
        position = 0
        while (mark := openings(text, opening, position)) is not None:
            found, position = self._calls(text, mark.end())
            yield from found

    def _calls(self, text: str, start: int) -> tuple[Iterable[ToolCall | MalformedCall], int]:
        """The calls whose opening mark ends at `start`, and where to go on."""
        head = None if self.head is None else self.head.match(text, skip_space(text, start))
        if head is None and self.headless:
            stop = self._stop(text, start)
            return [MalformedCall(self.headless, text[start:stop].strip())], stop
        said = {} if head is None else {key: group.strip() for key, group in head.groupdict().items() if group}
        name = said.get("fenced", said.get("name", ""))
        begin = skip_space(text, start if head is None else head.end())
        value, end, error = read_json(text, begin)
        if error is not None:
            stop = self._stop(text, start)
            cut_off = text.find(self.closing or self.opening, start) < 0
            problem = json_problem(error, text, begin, stop, cut_off=cut_off)
            return [MalformedCall(problem, text[start:stop].strip(), name)], stop
        between = self.between.match(text, end)
        after = end if between is None else between.end()
        if not text.startswith(self.closing, after):
            stop = self._stop(text, end)
            problem = f"after its JSON value, {self.closing} must follow, but there is {shorten(text[after:stop])}"
            if after >= stop:
                problem = f"it is not closed: {self.closing} is missing"
            return [MalformedCall(problem, text[start:stop].strip(), name)], stop
        raw = text[start : after if self.closing else end].strip()
        if head is not None:
            value = {"name": name, "arguments": value, "id": said.get("id")}
        return self._checked(value, raw), after + len(self.closing)

    def _checked(self, value: Any, raw: str) -> Iterable[ToolCall | MalformedCall]:
        if not self.lists or isinstance(value, dict):
            return [checked_call(value, raw)]
        if isinstance(value, list) and value:  # the text is the list's, and is kept once
            return (checked_call(each, raw if index == 0 else "") for index, each in enumerate(value))
        problem = f"after {self.opening} a list of calls must follow, but there is {shorten(raw)}"
        return [MalformedCall(problem, raw)]

    def _stop(self, text: str, start: int) -> int:
        """End of a call that can't be read."""
        found = (text.find(mark, start) for mark in (self.closing, self.opening, *self.stops) if mark)
        return min((end for end in found if end >= 0), default=len(text))


HERMES = MarkedFormat("hermes", "<tool_call>", "</tool_call>")
MISTRAL = MarkedFormat(
    "mistral",
    "[TOOL_CALLS]",
    head=re.compile(r"(?P<name>[\w.:-]+)\s*(?:\[CALL_ID\]\s*(?P<id>[\w-]+)\s*)?(?:\[ARGS\]\s*)?(?=\{)"),
    lists=True,
)
_SEP, _ENDS = "<｜tool▁sep｜>", ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK = MarkedFormat(
    "deepseek",
    _ENDS[0],
    _ENDS[1],
    stops=_ENDS[2:],
    head=re.compile(
        rf"function\s*{_SEP}\s*(?P<fenced>[^\s`]+)\s*```(?:json)?|(?P<name>(?:(?!{'|'.join(_ENDS)}|{_SEP}).)*){_SEP}",
        re.DOTALL,
    ),
    headless=f"{_SEP} is missing between its name and its arguments",
    between=re.compile(r"\s*(?:```)?\s*"),
)


def parse_tool_calls(text: str) -> tuple[ToolCall | MalformedCall, ...]:
    """The calls of a turn in the Hermes format, in order, at most MAX_CALLS. Never raises."""
    return HERMES.parse(text)
