"""Tool calls in tags with a tag for each argument, as Qwen3-Coder, GLM, MiniMax, DeepSeek and Kimi K3 write them. Pure.

What differs between the families are the marks, so that a family is a row:

    <tool_call>                                 <tool_call>code_interpreter
    <function=code_interpreter>                 <arg_key>code</arg_key>
    <parameter=code>                            <arg_value>print(1)</arg_value>
    print(1)                                    </tool_call>
    </parameter>
    </function>
    </tool_call>

    <minimax:tool_call>                         <｜DSML｜tool_calls>
    <invoke name="f">                           <｜DSML｜invoke name="f">
    <parameter name="code">1</parameter>        <｜DSML｜parameter name="code" string="true">1</｜DSML｜parameter>
    </invoke>                                   </｜DSML｜invoke>
    </minimax:tool_call>                        </｜DSML｜tool_calls>

The marks around all calls of a turn are not looked at: models leave them out at times, and a call without them counts.
Arguments are text; where the mark or the tool's schema says that one is no string, its text is read as JSON, and stays
text if that fails, so that the tool's own check can name it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.tools.formats.calls import (
    MAX_DEPTH,
    THINK,
    MalformedCall,
    MarkedCalls,
    ToolCall,
    is_deep,
    shorten,
    skip_space,
)

_Schemas = Mapping[tuple[str, str], Mapping[str, Any]]
"""(tool, parameter) -> its schema."""
_TEXT = ("string", "true")
"""Kinds, as marks name them, of arguments that are text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedFormat(MarkedCalls):
    """One format, by its marks: `opening` begins a call, up to its name, and `closing` follows the last argument.
    Patterns are matched where the mark before them ends."""

    head: re.Pattern[str]
    """The name, as group 1, and what follows it up to the first argument."""
    parameter: re.Pattern[str]
    """The beginning of an argument, with the groups `key`, and, where they have them, `kind` and `cdata`."""
    parameter_end: str
    """The mark behind an argument; `{key}` stands for its name."""
    shown: str
    """An argument's beginning as a malformed call is told of it."""
    outer: str = ""
    """A mark that may follow `closing` and belongs to this call."""
    padded: bool = False
    """One line break on each side of an argument's text belongs to the marks."""
    nested: str = ""
    """The beginning of each mark, where lists and objects are arguments in marks again; empty: they are JSON."""

    def _read(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall | MalformedCall]:
        schemas, position = _schemas(tools), 0
        while (start := self._next(text, position)) is not None:
            call, position = self._call(text, start, schemas)
            yield call

    def _call(self, text: str, start: int, schemas: _Schemas) -> tuple[ToolCall | MalformedCall, int]:
        """The call whose opening ends at `start`, and where to go on."""
        head, stop = self.head.match(text, start), self._stop(text, start)
        if head is None or head.end() > stop:
            problem = "the name of the function is missing" if stop < len(text) else "it is cut off in its name"
            return MalformedCall(problem, text[start:stop].strip()), stop
        name, position = head[1].strip(), head.end()
        arguments: dict[str, Any] = {}
        while (parameter := self.parameter.match(text, position)) is not None:
            key, begin = parameter["key"].strip(), parameter.end()
            said = parameter.groupdict()
            mark = ("]]>" if said.get("cdata") else "") + self.parameter_end.replace("{key}", key)
            end = _element_end(text, self.nested, key, begin) if self.nested else text.find(mark, begin)
            if end < 0:
                problem = f'its parameter "{key}" is not closed: {mark} is missing'
                return MalformedCall(problem, text[start:].strip(), name), len(text)
            if key in arguments:
                return MalformedCall(f'its parameter "{key}" is given twice', text[start:end].strip(), name), end
            arguments[key] = self._value(text[begin:end], said.get("kind"), schemas.get((name, key), {}))
            position = end + len(mark)
        return self._closed(text, start, position, name, arguments)

    def _closed(
        self, text: str, start: int, position: int, name: str, arguments: dict[str, Any]
    ) -> tuple[ToolCall | MalformedCall, int]:
        """The call whose last argument ends at `position`, and where to go on."""
        after = skip_space(text, position)
        if text.startswith(self.closing, after):
            end = after + len(self.closing)
            outer = skip_space(text, end)
            if self.outer and text.startswith(self.outer, outer):
                end = outer
            return ToolCall(name, arguments, text[start:after].strip()), end
        stop = self._stop(text, after)
        raw = text[start:stop].strip()
        if stop == after:
            return MalformedCall(f"it is not closed: {self.closing} is missing", raw, name), stop
        problem = f"{self.shown} or {self.closing} must follow, but there is {shorten(text[after:stop])}"
        return MalformedCall(problem, raw, name), stop

    def _value(self, text: str, kind: str | None, schema: Mapping[str, Any]) -> Any:
        if self.padded:
            text = text.removeprefix("\n").removesuffix("\n")
        if self.nested and text.lstrip().startswith(self.nested):
            return _expanded(text, self.nested, schema, MAX_DEPTH)
        if kind is not None:
            return text if kind in _TEXT else _from_json(text)
        named = schema.get("type")
        if named in (None, "string") or (isinstance(named, list) and "string" in named):
            return text
        return _from_json(text)


def _schemas(tools: Sequence[Mapping[str, Any]]) -> _Schemas:
    schemas = {}
    for tool in tools:
        function = tool.get("function", tool)
        for key, schema in (function.get("parameters") or {}).get("properties", {}).items():
            schemas[function.get("name"), key] = schema if isinstance(schema, Mapping) else {}
    return schemas


def _from_json(text: str) -> Any:
    try:
        value = json.loads(text)
        return text if is_deep(value) else value
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)


_ELEMENT = re.compile(r"\s*<([^\s<>/]+)>")


def _expanded(text: str, mark: str, schema: Mapping[str, Any], levels: int) -> Any:
    """The list or object that elements stand for: `item` for each value of a list, else one named by its key. Text
    that is no such thing, or lies too deep, stays text."""
    items: list[Any] = []
    fields: dict[str, Any] = {}
    position, last = 0, len(text.rstrip())
    while position < last:
        at = text.find(mark, position)
        element = None if at < 0 or text[position:at].strip() else _ELEMENT.match(text, at + len(mark))
        if element is None or not levels:
            return text
        key, begin = element[1], element.end()
        end = _element_end(text, mark, key, begin)
        if end < 0:
            return text
        inner = text[begin:end]
        known = schema.get("items") if key == "item" else (schema.get("properties") or {}).get(key)
        known = known if isinstance(known, Mapping) else {}
        if inner.lstrip().startswith(mark):
            value = _expanded(inner, mark, known, levels - 1)
        else:
            value = inner if known.get("type") in (None, "string") else _from_json(inner)
        items.append(value)
        fields[key] = value
        position = end + len(f"{mark}</{key}>")
    return items if set(fields) == {"item"} else fields


def _element_end(text: str, mark: str, key: str, begin: int) -> int:
    """Place of the mark that closes an element of this name whose text begins at `begin`; -1: there is none."""
    opened, closed = f"{mark}<{key}>", f"{mark}</{key}>"
    depth, position = 1, begin
    while depth:
        end = text.find(closed, position)
        if end < 0:
            return -1
        depth += text.count(opened, position, end) - 1
        position = end + len(closed)
    return position - len(closed)


QWEN3_CODER = TaggedFormat(
    "qwen3_coder",
    opening="<function=",
    head=re.compile(r"\s*([^\s<>]+)\s*>"),
    parameter=re.compile(r"\s*<parameter=(?P<key>[^\s<>]+)\s*>"),
    parameter_end="</parameter>",
    closing="</function>",
    shown="<parameter=...>",
    outer="</tool_call>",
    padded=True,
    around=("<tool_call>", "</tool_call>", "<seed:tool_call>", "</seed:tool_call>"),
)
GLM45 = TaggedFormat(
    "glm45",
    opening="<tool_call>",
    head=re.compile(r"\s*([^\s<>{}]+)\s*"),
    parameter=re.compile(r"\s*<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>"),
    parameter_end="</arg_value>",
    closing="</tool_call>",
    shown="<arg_key> with <arg_value>,",
)
HUNYUAN3 = TaggedFormat(
    "hunyuan3",
    opening="<tool_call:opensource>",
    head=re.compile(r"\s*([^\s<>{}]+)\s*<tool_sep:opensource>"),
    parameter=re.compile(r"\s*<arg_key:opensource>(?P<key>[^<]*)</arg_key:opensource>\s*<arg_value:opensource>"),
    parameter_end="</arg_value:opensource>",
    closing="</tool_call:opensource>",
    shown="<arg_key:opensource> with <arg_value:opensource>,",
    thought=("<think:opensource>", "</think:opensource>"),
    around=("<tool_calls:opensource>", "</tool_calls:opensource>"),
)


def _invoke(
    name: str,
    tag: str,
    around: tuple[str, ...],
    *,
    kind: str = "",
    thought: tuple[str, str] = THINK,
    frame: re.Pattern[str] | None = None,
) -> TaggedFormat:
    """The rows that call an argument `parameter`, with a prefix before each tag."""
    prefix = re.escape(tag)
    return TaggedFormat(
        name,
        opening=f'<{tag}invoke name="',
        head=re.compile(r'([^"<>]+)"\s*>'),
        parameter=re.compile(rf'\s*<{prefix}parameter name="(?P<key>[^"<>]+)"{kind}\s*>'),
        parameter_end=f"</{tag}parameter>",
        closing=f"</{tag}invoke>",
        shown=f"<{tag}parameter ...>",
        thought=thought,
        around=around,
        frame=frame,
    )


MINIMAX_M2 = _invoke("minimax_m2", "", ("<minimax:tool_call>", "</minimax:tool_call>"))
DEEPSEEK_V32 = _invoke(
    "deepseek_v32",
    "｜DSML｜",
    ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    kind=r'(?:\s+string="(?P<kind>\w+)")?',
)
MUSE = _invoke(
    "muse",
    "atem:",
    ("<atem:function_calls>", "</atem:function_calls>"),
    thought=("to=self<|message|>", "<|eom|>"),
    frame=re.compile(r"(?:<\|start\|>assistant)?\s*to=[\w.-]+<\|message\|>|<\|eom\|>"),
)
_MINIMAX = "]<]minimax[>["
MINIMAX_M3 = TaggedFormat(
    "minimax_m3",
    opening=f'{_MINIMAX}<invoke name="',
    head=re.compile(r'([^"<>]+)"\s*>'),
    parameter=re.compile(rf"\s*{re.escape(_MINIMAX)}<(?P<key>[^\s<>/]+)>"),
    parameter_end=f"{_MINIMAX}</{{key}}>",
    closing=f"{_MINIMAX}</invoke>",
    shown=f"{_MINIMAX}<...>",
    nested=_MINIMAX,
    thought=("<mm:think>", "</mm:think>"),
    around=(f"{_MINIMAX}<tool_call>", f"{_MINIMAX}</tool_call>"),
)
MINICPM5 = TaggedFormat(
    "minicpm5",
    opening='<function name="',
    head=re.compile(r'([^"<>]+)"\s*>'),
    parameter=re.compile(r'\s*<param name="(?P<key>[^"<>]+)"\s*>(?P<cdata><!\[CDATA\[)?'),
    parameter_end="</param>",
    closing="</function>",
    shown="<param ...>",
)
KIMI_K3 = TaggedFormat(
    "kimi_k3",
    opening='<|open|>call tool="',
    head=re.compile(r'([^"<>]+)"[^<>]*<\|sep\|>'),
    parameter=re.compile(r'\s*<\|open\|>argument key="(?P<key>[^"<>]+)"(?: type="(?P<kind>\w+)")?<\|sep\|>'),
    parameter_end="<|close|>argument<|sep|>",
    closing="<|close|>call<|sep|>",
    shown='<|open|>argument key="..."<|sep|>',
    thought=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    around=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    frame=re.compile(r"<\|open\|>response<\|sep\|>|<\|close\|>(?:response|message)<\|sep\|>"),
)
TAGGED = (
    QWEN3_CODER,
    GLM45,
    HUNYUAN3,
    MINIMAX_M2,
    MINIMAX_M3,
    DEEPSEEK_V32,
    MUSE,
    MINICPM5,
    KIMI_K3,
)
