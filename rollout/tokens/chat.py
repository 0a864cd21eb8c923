"""Turns conversations into ids exactly as the model's own chat template would, piece by piece.

A prompt is rendered once. After each sampled turn only what the template puts between that turn and the next is
encoded: the end-of-turn token if the turn was cut off before it, the tools' answers, the header of the next turn. This
is exact for templates that are append-only, and loading verifies that on probe conversations; a template that rewrites
earlier turns is refused with what it did. Pieces meet at special tokens, which no tokenizer merges with their
neighbours.

Where a template has no place for tools, their signatures go into the system turn in the Hermes format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fairbox.errors import FairboxError
from rollout.tokens.tokenizer import Message, Tokenizer

__all__ = ["ChatTemplate", "ChatTemplateError"]

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

_CALL = '<tool_call>\n{"name": "probe", "arguments": {"code": "print(1)"}}\n</tool_call>'
_PROBE_TURNS = ("Turn one.", f"<think>\nWhy?\n</think>\n\n{_CALL}", _CALL, f"Let me see.\n{_CALL}\n{_CALL}")
_PROBE_ANSWERS = (("42",), ("a\nb", "é ☃"), ("[no output]",))
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "fairbox_probe",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}


class ChatTemplateError(FairboxError):
    """The template can't be used for exact multi-turn tokens; the text says what it did."""


class ChatTemplate:
    """The chat template of one tokenizer, verified append-only. Raises ChatTemplateError when it is not."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        start: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
        self._start = start
        self._has_tools = "fairbox_probe" in tokenizer.render(start, [_PROBE_TOOL], generate=True)
        self.end_of_turn = self._find_end_of_turn()
        """Id of the token that ends an assistant's turn."""
        self._verify()

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """What ends a turn when it is sampled."""
        return (self.end_of_turn,)

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """Ids up to where the assistant's next turn begins. `tools` are OpenAI function schemas."""
        return self._tokenizer.encode(self.prompt_text(messages, tools))

    def prompt_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The text that `prompt_ids` encodes."""
        if tools and not self._has_tools:
            messages, tools = _with_hermes_tools(messages, tools), ()
        return self._tokenizer.render(messages, tools, generate=True)

    def between_turns(self, answers: Sequence[str], *, ended: bool) -> tuple[int, ...]:
        """Ids between a sampled turn and the next one, with the tools' answers, in their order.

        `ended` says whether the turn's last id is `end_of_turn`; a turn that was cut off gets it here.
        """
        ids = self._tokenizer.encode(self._between(answers))
        assert ids[0] == self.end_of_turn
        return ids[1:] if ended else ids

    def turn_text(self, ids: Sequence[int]) -> str:
        """What the assistant said in a sampled turn, without the end-of-turn token."""
        if ids and ids[-1] == self.end_of_turn:
            ids = ids[:-1]
        return self._tokenizer.decode(ids)

    def decode_plain(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens, as verl's dumps have it."""
        return self._tokenizer.decode(ids, skip_special=True)

    def defuse(self, text: str) -> str:
        """`text` with a space inside each special token, so that a tool's output can't end its own turn.

        Halves of surrogate pairs, which no tokenizer takes, become question marks.
        """
        text = text.encode("utf-8", "replace").decode("utf-8")
        for token in self._tokenizer.special_tokens:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def _between(self, answers: Sequence[str]) -> str:
        turn = _PROBE_TURNS[0]
        before = self._tokenizer.render(self._start, (), generate=True) + turn
        conversation = [*self._start, {"role": "assistant", "content": turn}, *_tool_messages(answers)]
        whole = self._tokenizer.render(conversation, (), generate=True)
        if not whole.startswith(before):
            raise ChatTemplateError(_rewritten(before, whole))
        return whole[len(before) :]

    def _find_end_of_turn(self) -> int:
        text = self._between(("42",))
        ids = self._tokenizer.encode(text)
        if not ids or ids[0] not in self._tokenizer.special_tokens.values():
            raise ChatTemplateError(f"the chat template ends a turn with {text[:20]!r}, which is no special token")
        return ids[0]

    def _verify(self) -> None:
        """Grows a conversation turn by turn and compares its pieces with the template's rendering of the whole."""
        conversation = list(self._start)
        pieces = self._tokenizer.render(conversation, (), generate=True)
        ids = self._tokenizer.encode(pieces)
        for turn, answers in zip(_PROBE_TURNS, (*_PROBE_ANSWERS, ("end",)), strict=True):
            conversation += [{"role": "assistant", "content": turn}, *_tool_messages(answers)]
            pieces += turn + self._between(answers)
            ids += self._tokenizer.encode(turn) + self.between_turns(answers, ended=False)
            whole = self._tokenizer.render(conversation, (), generate=True)
            if whole != pieces:
                raise ChatTemplateError(_rewritten(pieces, whole))
            if self._tokenizer.encode(whole) != ids:
                raise ChatTemplateError("the tokenizer joins the chat template's pieces to other ids than the whole")


def _tool_messages(answers: Sequence[str]) -> list[Message]:
    return [{"role": "tool", "content": answer} for answer in answers]


def _with_hermes_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    block = _HERMES_TOOLS.format(signatures=signatures)
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{block}"}, *messages[1:]]
    return [{"role": "system", "content": block}, *messages]


def _rewritten(before: str, whole: str) -> str:
    same = next(
        (i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), min(len(before), len(whole))
    )
    return (
        "the chat template is not append-only, so the tokens of earlier turns would change under the model: "
        f"{before[same : same + 60]!r} became {whole[same : same + 60]!r}"
    )
