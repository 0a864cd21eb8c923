"""Conversations in the form in which a chat template takes them, and what it makes of them. No ids.

Most templates keep a turn that is given as text, calls and all. Some take a tool's answer only after a turn whose calls
are given as data (`tool_calls`), or write thinking only where it is given apart (`reasoning_content`): `TurnStyle` says
which. What stands between two turns is cut out of the rendering of a short conversation: from the token that ends the
turn to where the next one begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.tokens.alignment import common_length
from rollout.tokens.tokenizer import ChatTemplateError, HubTokenizer, Message

_SENTINEL = "fairbox-sentinel"
_ANSWER = "fairbox-answer"
PROBE_NAME = "fairbox_probe"
"""A tool that no one has."""
PROBE_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": PROBE_NAME,
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Code."}},
            "required": ["code"],
        },
    },
}
_OPENED = re.compile(
    r"(?:<(?:mm:)?think(?::opensource)?>(?:\s*</(?:mm:)?think(?::opensource)?>)?|<\|channel>thought\s*<channel\|>"
    r"|<\|open\|>think<\|sep\|>|<\|START_THINKING\|>(?:<\|END_THINKING\|>)?)\s*\Z"
)
"""Thinking that a template begins, or leaves out, for the model."""
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""The keys that templates read a turn's thinking from; each reads one of them."""
_HERMES_TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{signatures}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""The wording that Hermes and Qwen models were trained with."""


@dataclass(frozen=True, slots=True)
class CallRef:
    """An answer's reference to its call, for templates that ask for one."""

    name: str = ""
    """The function's name; empty if the call names none."""
    call_id: str | None = None
    """As the model wrote it; None when it wrote none."""


@dataclass(frozen=True, slots=True)
class MessageTurn:
    """A sampled turn, without its end, and the answers that followed it. `refs` has one for each answer, or none."""

    text: str
    answers: tuple[str, ...]
    refs: tuple[CallRef, ...] = ()
    reasoning: str = ""
    """Thinking apart from the text; a sampled turn has it in its text."""


@dataclass(frozen=True, slots=True)
class TurnStyle:
    """The form in which the template gets a turn of the assistant."""

    calls: bool = False
    """As `tool_calls`, and not as text."""
    reasoning: bool = False
    """With its thinking beside the calls, as `reasoning_content`."""
    arguments_as_text: bool = False
    """The calls' arguments as JSON text, and not as an object."""
    content: str | None = ""
    """Content beside `tool_calls`."""
    opened: bool = True
    """Thinking that the template itself opens is part of the turn's text."""


def opened_thinking(text: str) -> str:
    """Beginning of the next turn that `text` already ends with: `<think>`, or an empty thought; empty if none."""
    found = _OPENED.search(text)
    return found.group() if found else ""


class Conversation:
    """Renders conversations in one style. `start` is the shortest beginning that the template takes."""

    def __init__(self, tokenizer: HubTokenizer, style: TurnStyle, start: Sequence[Message], *, has_tools: bool) -> None:
        self._tokenizer = tokenizer
        self.style = style
        self.start = tuple(start)
        self.has_tools = has_tools
        """Says whether the template has a place for tools."""
        self._probe_tools: Sequence[Mapping[str, Any]] = [PROBE_TOOL] if has_tools else ()
        self._opened = opened_thinking(tokenizer.render(self.start, self._probe_tools, generate=True))
        self.end = self._find_end()
        """Text of the token that ends a turn."""
        if _ANSWER not in self.between((_ANSWER,)):
            raise ChatTemplateError("the chat template leaves out what tools answer")

    def between(self, answers: Sequence[str], refs: Sequence[CallRef] = ()) -> str:
        """The text from the end of a turn to the beginning of the next one."""
        turn = MessageTurn(_SENTINEL, tuple(answers), tuple(refs))
        conversation = [*self.start, *self._messages(turn, self._opened)]
        return self._after_turn(self._tokenizer.render(conversation, self._probe_tools, generate=True))

    def whole(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], turns: Sequence[MessageTurn]
    ) -> str:
        """The text of a prompt and turns, up to where the next turn begins."""
        if tools and not self.has_tools:
            messages, tools = with_hermes_tools(messages, tools), ()
        conversation: list[Mapping[str, Any]] = [dict(message) for message in messages]
        before = ""
        for number, turn in enumerate(turns):
            if number <= 1:  # after a prompt, and after answers
                before = opened_thinking(self._tokenizer.render(conversation, tools, generate=True))
            conversation += self._messages(turn, before)
        return self._tokenizer.render(conversation, tools, generate=True)

    def rendered_call(self, arguments: Mapping[str, Any], *, as_text: bool) -> str:
        """The template's text for a call of the probe tool, up to its answer. Raises ChatTemplateError if it takes no
        calls. `as_text`: passes the arguments as JSON text."""
        call = _call(CallRef(PROBE_NAME), 0, dict(arguments), as_text=as_text)
        turn = {"role": "assistant", "content": self.style.content or "", "tool_calls": [call]}
        before = self._tokenizer.render(self.start, self._probe_tools, generate=True)
        conversation = [*self.start, turn, self._tool_message(_ANSWER, CallRef(PROBE_NAME), 0)]
        whole = self._tokenizer.render(conversation, self._probe_tools, generate=True)
        before = before.removesuffix(opened_thinking(before))
        called = whole[self._token_start(whole, common_length(before, whole)) :].partition(_ANSWER)[0]
        between = self.between((_ANSWER,), (CallRef(PROBE_NAME),)).partition(_ANSWER)[0]
        return called.removesuffix(between)

    def _token_start(self, text: str, at: int) -> int:
        """`at`, or the start of the special token that it lies in."""
        for token in self._tokenizer.special_tokens:
            begin = text.find(token, max(0, at - len(token) + 1), at + len(token) - 1)
            if 0 <= begin < at:
                return begin
        return at

    def tool_message(self, text: str, ref: CallRef, index: int) -> Message:
        """The `index`-th answer to a turn's calls as a message; it says what is needed to render it again."""
        if self.style.calls or ref.call_id is not None:
            return self._tool_message(text, ref, index)
        return {"role": "tool", "content": text}

    def _messages(self, turn: MessageTurn, before: str) -> list[Mapping[str, Any]]:
        refs = turn.refs or (CallRef(),) * len(turn.answers)
        answered = enumerate(zip(turn.answers, refs, strict=True))
        answers = [self._tool_message(text, ref, index) for index, (text, ref) in answered]
        return [self._assistant(turn, before, refs), *answers]

    def _assistant(self, turn: MessageTurn, before: str, refs: Sequence[CallRef]) -> Mapping[str, Any]:
        if not self.style.calls:
            return {"role": "assistant", "content": before + turn.text if self.style.opened else turn.text}
        arguments = {"code": turn.text}
        calls = [_call(ref, n, arguments, as_text=self.style.arguments_as_text) for n, ref in enumerate(refs)]
        thought = dict.fromkeys(_REASONING_KEYS, turn.reasoning) if self.style.reasoning and turn.reasoning else {}
        return {"role": "assistant", "content": self.style.content, **thought, "tool_calls": calls}

    def _tool_message(self, text: str, ref: CallRef, index: int) -> Message:
        name, call_id = ref.name or PROBE_NAME, ref.call_id or _call_id(index)
        return {"role": "tool", "content": text, "name": name, "tool_call_id": call_id}

    def _find_end(self) -> str:
        """The special token after a turn; where calls are given as data, the last one of a turn that ends with them."""
        special = self._tokenizer.special_tokens
        if self.style.calls:
            turn = self._messages(MessageTurn(_SENTINEL, ("42",)), "")[0]
            whole = self._tokenizer.render([*self.start, turn], self._probe_tools, generate=False)
            after = _after_sentinel(whole)
            found = max(((after.rfind(text) + len(text), text) for text in special if text in after), default=(0, ""))
            if not found[1] or after[found[0] :].strip():
                raise _no_end(after[-20:])
            return found[1]
        whole = self._tokenizer.render(
            [*self.start, *self._messages(MessageTurn(_SENTINEL, ("42",)), "")], self._probe_tools, generate=True
        )
        after = _after_sentinel(whole)
        starts = [text for text in special if after.startswith(text)]
        if not starts:
            raise _no_end(after[:20])
        return max(starts, key=len)

    def _after_turn(self, whole: str) -> str:
        after = _after_sentinel(whole)
        at = after.find(self.end)
        if at < 0 or (at > 0 and not self.style.calls):
            raise ChatTemplateError(f"the chat template ends this turn with {after[:20]!r}, and not with {self.end}")
        return after[at:]


def _no_end(text: str) -> ChatTemplateError:
    return ChatTemplateError(f"the chat template ends a turn with {text!r}, which is no special token")


def _after_sentinel(whole: str) -> str:
    at = whole.find(_SENTINEL)
    if at < 0:
        raise ChatTemplateError("the chat template leaves out what the assistant said")
    return whole[at + len(_SENTINEL) :]


def _call(ref: CallRef, index: int, arguments: dict[str, Any], *, as_text: bool) -> dict[str, Any]:
    given = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
    function = {"name": ref.name or PROBE_NAME, "arguments": given}
    return {"type": "function", "id": ref.call_id or _call_id(index), "function": function}


def _call_id(index: int) -> str:
    """An id for a call that has none: nine letters and digits, which Mistral's templates ask for."""
    return f"call{index:05d}"


def with_hermes_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages with the tools' signatures in the system turn, for a template without a place for tools."""
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    block = _HERMES_TOOLS.format(signatures=signatures)
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{block}"}, *messages[1:]]
    return [{"role": "system", "content": block}, *messages]
