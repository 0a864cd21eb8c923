"""A sampled turn as an assistant's message: thoughts, content and tool calls taken apart. Pure.

A call that is not in order is not dropped: where it names a function, it is handed over as a call whose arguments are
the model's own text and no JSON object, so that the agent answers it with an error and the model can correct itself;
where it can't be, its text stays in the content.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.capture.messages import Call, ChatMessage
from rollout.tools import FORMATS, MalformedCall, ToolCall, ToolCallFormat
from rollout.tools.formats.calls import THINK

_CHANNEL = re.compile(r"<\|channel\|>(\w+)\s*<\|message\|>(.*?)(?=<\|(?:end|return|start)\|>|\Z)", re.DOTALL)
"""A message of gpt-oss that is no call: of the channel `analysis`, or said to the user."""
_MARK_CHARS = 64
"""A mark and the blanks behind it, at most: what stands farther from its call is not looked for."""
_NAME = re.compile(r'"name"\s*:\s*("(?:[^"\\]|\\.)*")')
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*(.*)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A turn as a message, with the problems of its calls."""

    message: ChatMessage
    problems: tuple[str, ...] = ()
    """Problems of its malformed calls, in their order."""


def parse_turn(text: str, form: ToolCallFormat, tools: Sequence[Mapping[str, Any]]) -> ParsedTurn:
    """Thoughts, content and the calls in the format `form`. Without `tools`, calls are part of the content."""
    reasoning, rest = _split_thought(text, form, tools)
    found = form.parse(text if form is FORMATS["gpt_oss"] else rest, tools) if tools else ()
    read = [(call, _call_of(call)) for call in found]
    calls = tuple(call for _, call in read if call is not None)
    content = _Marks(form).without(rest, [call.raw for call, given in read if given is not None])
    problems = tuple(call.problem for call in found if isinstance(call, MalformedCall))
    return ParsedTurn(ChatMessage("assistant", content.strip(), calls, reasoning), problems)


def _split_thought(text: str, form: ToolCallFormat, tools: Sequence[Mapping[str, Any]]) -> tuple[str | None, str]:
    """Thoughts and the rest. The template may have opened the block itself, so `</think>` alone also ends one; a block
    that is not closed takes everything, unless a call follows in it."""
    if form is FORMATS["gpt_oss"]:
        said = _CHANNEL.findall(text)
        thoughts = "\n".join(body.strip() for channel, body in said if channel == "analysis")
        return thoughts or None, "\n".join(body for channel, body in said if channel != "analysis")
    text = text.lstrip()
    begins, ends = getattr(form, "thought", THINK)
    begun = text.startswith(begins)
    thought, closed, rest = text.removeprefix(begins).partition(ends)
    if closed and (begun or not form.parse(thought, tools)):
        return thought.strip() or None, rest
    if not begun:
        return None, text
    whole = text.removeprefix(begins)
    calls = form.parse(whole, tools)
    thought = whole
    if calls:  # the raw text of one that is cut off behind its mark is empty
        raw = calls[0].raw
        thought = _Marks(form).before_call(whole.partition(raw)[0] if raw else whole)
    return thought.strip() or None, whole[len(thought) :]


class _Marks:
    """Marks around calls in the text of a turn, and around the words."""

    def __init__(self, form: ToolCallFormat) -> None:
        around = getattr(form, "around", ())
        self._before = tuple(mark for mark in (getattr(form, "opening", ""), *around) if mark)
        behind = [re.escape(mark) for mark in (getattr(form, "closing", ""), *around) if mark]
        self._behind = re.compile("(?:" + "|".join([*behind, r"\s"]) + ")+")
        self._frame: re.Pattern[str] | None = getattr(form, "frame", None)

    def before_call(self, text: str) -> str:
        """A text that a call follows, without the marks that open the call."""
        text = text.rstrip()
        while text.endswith(self._before):
            text = text.removesuffix(next(mark for mark in self._before if text.endswith(mark))).rstrip()
        return text

    def without(self, text: str, calls: Sequence[str]) -> str:
        """The text around the calls."""
        parts, position = [], 0
        for raw in calls:
            start = self._start_of(raw, text, position)
            if start < 0:  # one of a list, which is gone as a whole
                continue
            parts.append(self.before_call(text[position:start]))
            position = start + len(raw)
            behind = self._behind.match(text, position)
            position = position if behind is None else behind.end()
        said = [part if self._frame is None else self._frame.sub("", part) for part in (*parts, text[position:])]
        return "\n\n".join(part for part in said if part.strip())

    def _start_of(self, raw: str, text: str, position: int) -> int:
        """Start of a call's text, behind a mark if it stands behind one; -1 if there is none. Linear in the text."""
        first = start = text.find(raw, position)
        while raw and start >= 0:
            if text[max(position, start - _MARK_CHARS) : start].rstrip().endswith(self._before):
                return start
            start = text.find(raw, start + len(raw))
        return first


def _call_of(call: ToolCall | MalformedCall) -> Call | None:
    own = f"call_{uuid.uuid4().hex[:24]}"
    if isinstance(call, ToolCall):
        return Call(own, call.name, json.dumps(call.arguments, ensure_ascii=False), call.call_id)
    name = call.name or _name_in(call.raw)
    match = _ARGUMENTS.search(call.raw)
    arguments = call.raw if match is None else match[1]
    # Nobody may run what was not written in order, so it is handed over only where its arguments can't be read.
    return None if not name or _is_object(arguments) else Call(own, name, arguments)


def _name_in(raw: str) -> str:
    name = _NAME.search(raw)
    try:
        return "" if name is None else str(json.loads(name[1]))
    except ValueError:
        return ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
