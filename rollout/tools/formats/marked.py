"""Tool calls that are JSON behind a mark, as Hermes, Mistral, DeepSeek, Kimi K2 and others write them. Pure.

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

Kimi K2 and Solar write an id before the name or in its place:

    <|tool_call_begin|>functions.code_interpreter:0<|tool_call_argument_begin|>{"code": "print(1)"}<|tool_call_end|>
    <|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>code_interpreter<|tool_call:args|>{"code": "print(1)"}...

What differs between the families are the marks and the keys, so that a family is a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.tools.formats.calls import (
    KEYS,
    CallKeys,
    MalformedCall,
    MarkedCalls,
    ToolCall,
    checked_call,
    json_problem,
    read_json,
    shorten,
    skip_space,
)

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedFormat(MarkedCalls):
    """One format, by what stands around the JSON. If `closing` is empty, nothing must follow it."""

    head: re.Pattern[str] | None = None
    """Text before the JSON of arguments, with the groups `name` or `fenced`, and `id`. If it is None, or not there,
    the JSON has the name itself."""
    headless: str = ""
    """Problem of a call without the head; empty if it needs none."""
    begun: bool = False
    """The template writes the first opening, and an opening without the head is no call."""
    lists: bool = False
    """Says whether a list of calls may follow the opening."""
    several: bool = False
    """Says whether calls may follow one another up to the closing mark."""
    between: re.Pattern[str] = _SPACE
    """Text that may stand between the JSON and the closing mark."""
    keys: CallKeys = KEYS
    """Keys of a call that has its name in the JSON."""
    keyed: bool = False
    """A call is an object with one key, its name, and the arguments as the value."""

    def _read(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall | MalformedCall]:
        start = 0 if self.begun else self._next(text, 0)
        while start is not None:
            found, position, more = self._calls(text, start)
            yield from found
            start = position if more else self._next(text, position)

    def _calls(self, text: str, start: int) -> tuple[Iterable[ToolCall | MalformedCall], int, bool]:
        """The calls behind the mark that ends at `start`, where to go on, and whether another call follows there."""
        head = None if self.head is None else self.head.match(text, skip_space(text, start))
        if head is None and self.begun:
            return (), start, False
        if head is None and self.headless:
            stop = self._stop(text, start)
            return [MalformedCall(self.headless, text[start:stop].strip())], stop, False
        said = {} if head is None else {key: group.strip() for key, group in head.groupdict().items() if group}
        name = said.get("fenced", said.get("name", ""))
        begin = skip_space(text, start if head is None else head.end())
        value, end, error = read_json(text, begin)
        if error is not None:
            stop = self._stop(text, start)
            cut_off = text.find(self.closing or self.opening, start) < 0
            problem = json_problem(error, text, begin, stop, cut_off=cut_off)
            return [MalformedCall(problem, text[start:stop].strip(), name)], stop, False
        between = self.between.match(text, end)
        after = end if between is None else between.end()
        if head is not None:
            value = {self.keys.name: name, self.keys.arguments: value, self.keys.call_id: said.get("id")}
        if self.several and text.startswith("{", after):
            return self._checked(value, text[start:end].strip()), after, True
        if not text.startswith(self.closing, after):
            stop = self._stop(text, end)
            problem = f"after its JSON value, {self.closing} must follow, but there is {shorten(text[after:stop])}"
            if after >= stop:
                problem = f"it is not closed: {self.closing} is missing"
            return [MalformedCall(problem, text[start:stop].strip(), name)], stop, False
        raw = text[start : after if self.closing else end].strip()
        return self._checked(value, raw), after + len(self.closing), False

    def _checked(self, value: Any, raw: str) -> Iterable[ToolCall | MalformedCall]:
        if not self.lists or isinstance(value, dict):
            return [self._call(value, raw)]
        if isinstance(value, list) and value:  # the text is the list's, and is kept once
            return (self._call(each, raw if index == 0 else "") for index, each in enumerate(value))
        problem = f"after {self.opening} a list of calls must follow, but there is {shorten(raw)}"
        return [MalformedCall(problem, raw)]

    def _call(self, value: Any, raw: str) -> ToolCall | MalformedCall:
        if self.keyed and isinstance(value, dict):
            if len(value) != 1:
                return MalformedCall("it must have one key, the name of the function", raw)
            ((name, arguments),) = value.items()
            value = {self.keys.name: name, self.keys.arguments: arguments}
        return checked_call(value, raw, self.keys)


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
    around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)
KIMI_K2 = MarkedFormat(
    "kimi_k2",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    stops=("<|tool_calls_section_end|>",),
    head=re.compile(r"(?P<id>(?:functions\.)?(?P<name>[\w.-]+?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>"),
    headless="<|tool_call_argument_begin|> is missing between its name and its arguments",
    around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
)
SOLAR = MarkedFormat(
    "solar",
    "<|tool_call:begin|>",
    "<|tool_call:end|>",
    stops=("<|calls|>",),
    head=re.compile(r"(?P<id>[^<]*)<\|tool_call:name\|>(?P<name>[^<]*)<\|tool_call:args\|>"),
    headless="<|tool_call:name|> and <|tool_call:args|> must stand before its arguments",
    thought=("<|think|>", "<|end|>"),
    around=("<|tool_calls|>",),
    frame=re.compile(r"<\|begin\|>assistant|<\|content\|>"),
)
FUNCTIONARY31 = MarkedFormat(
    "functionary31",
    "<function=",
    "</function>",
    head=re.compile(r"(?P<name>[^\s<>{]+)>"),
    headless="the name of the function is missing",
)
FUNCTIONARY32 = MarkedFormat(
    "functionary32",
    ">>>",
    head=re.compile(r"(?P<name>(?!all\n)[\w.-]+)\n\s*(?=\{)"),
    begun=True,
    frame=re.compile(r"(?:\A|>>>)all\n"),
)
GRANITE3 = MarkedFormat("granite3", "<|tool_call|>", lists=True)
_COMMAND_R = CallKeys("tool_name", "parameters", "tool_call_id")
MARKED = (
    HERMES,
    MISTRAL,
    DEEPSEEK,
    KIMI_K2,
    SOLAR,
    GRANITE3,
    MarkedFormat("nemotron2", "<TOOLCALL>", "</TOOLCALL>", lists=True),
    MarkedFormat("tool_calls", "<tool_calls>", "</tool_calls>", lists=True, several=True),
    MarkedFormat("gigachat3", "<|function_call|>"),
    MarkedFormat(
        "apertus",
        "<|tools_prefix|>",
        stops=("<|tools_suffix|>",),
        lists=True,
        keyed=True,
        around=("<|tools_suffix|>",),
    ),
    MarkedFormat("command_r7b", "<|START_ACTION|>", "<|END_ACTION|>", lists=True, keys=_COMMAND_R),
    MarkedFormat("command_r", "Action:\n```json", "```", lists=True, keys=_COMMAND_R),
    FUNCTIONARY31,
    FUNCTIONARY32,
)
"""`tool_calls` is MiniMax M1's, one object a line, and Apriel's, a list."""


def parse_tool_calls(text: str) -> tuple[ToolCall | MalformedCall, ...]:
    """The calls of a turn in the Hermes format, in order, at most MAX_CALLS. Never raises."""
    return HERMES.parse(text)
