"""Finds out whether a chat template is append-only, by growing a conversation turn by turn.

Each rendering is compared with the pieces that a trajectory would hold: the prompt as it was rendered first, the turns
as they were sampled, and what `Conversation.between` says stands between them. Styles of turns and forms of thinking
are tried in turn; the first without a difference is taken, or else the one with the least.

Of turns that are given as data the template's own text, as it was when the turn was the last, is what must stay. So a
template that drops the thinking in a text is not tried with data that has none.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

from rollout.tokens.alignment import Difference, PieceKind, RenderedPiece, align
from rollout.tokens.conversation import (
    PROBE_NAME,
    PROBE_TOOL,
    CallRef,
    Conversation,
    MessageTurn,
    TurnStyle,
    opened_thinking,
)
from rollout.tokens.tokenizer import ChatTemplateError, HubTokenizer, Message

_CALL = '<tool_call>\n{"name": "probe", "arguments": {"code": "print(1)"}}\n</tool_call>'
_SAID = ("Turn one.", _CALL, "So it is.", f"Let me see.\n{_CALL}\n{_CALL}")
_ANSWERS = (("42",), ("a\nb", "é ☃"), ("[no output]",), ("end",))
_STARTS: tuple[tuple[Message, ...], ...] = (
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}),
    ({"role": "user", "content": "Hello."},),
)
_THOUGHT = "Why is that so?"
"""Thinking where it is given apart."""
_TEXT_STYLES = (TurnStyle(), TurnStyle(opened=False))
_REASONED_STYLES = tuple(
    TurnStyle(calls=True, reasoning=True, arguments_as_text=text, content=content)
    for text in (False, True)
    for content in ("", None)
)
_CALL_STYLES = tuple(dataclasses.replace(style, reasoning=False) for style in _REASONED_STYLES)


class Severity(IntEnum):
    """Effects of a template on a trajectory, from none to one that no choice makes exact."""

    NONE = 0
    """Append-only: its rendering of a whole conversation is the trajectory."""
    TURN = 1
    """It rewrites earlier turns: the sampled ids are exact, but not what a chat server would show of them."""
    PROMPT = 2
    """It rewrites the prompt when the conversation grows. The same holds."""
    TOKENS = 3
    """The tokenizer joins the pieces to other ids than the whole."""
    BETWEEN = 4
    """The text between turns depends on the turns before."""


@dataclass(frozen=True, slots=True)
class ThinkingForm:
    """Form of a turn's thinking. `text` has a place, `{said}`, for what is said after it."""

    name: str
    text: str
    always: bool = False
    """Turns without thinking are not tried: the template writes an empty thought into them."""


_FORMS = (
    ThinkingForm("<think>\\n...\\n</think>\\n\\n", "<think>\nWhy?\n</think>\n\n{said}"),
    ThinkingForm("<think>\\n...\\n</think>\\n\\n", "<think>\nWhy?\n</think>\n\n{said}", always=True),
    ThinkingForm("<think>\\n...\\n</think>\\n", "<think>\nWhy?\n</think>\n{said}", always=True),
    ThinkingForm("\\n<think>...</think>\\n", "\n<think>Why?</think>\n{said}", always=True),
    ThinkingForm("<think>...</think>", "<think>Why?</think>{said}", always=True),
)
_APART = ThinkingForm("reasoning_content", "{said}")


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of probing one template in its best style."""

    conversation: Conversation
    form: ThinkingForm
    differences: tuple[tuple[Difference, int], ...] = ()
    """The first of each kind, and with how many turns the conversation had it."""
    tokens: str | None = None
    """Report of pieces that the tokenizer joins; None if it joins none."""

    @property
    def severity(self) -> Severity:
        kinds = {PieceKind.TURN: Severity.TURN, PieceKind.PROMPT: Severity.PROMPT, PieceKind.BETWEEN: Severity.BETWEEN}
        worst = max((kinds[difference.kind] for difference, _ in self.differences), default=Severity.NONE)
        return max(worst, Severity.NONE if self.tokens is None else Severity.TOKENS)


def probe(tokenizer: HubTokenizer) -> Findings:
    """The best style for a template, with what is wrong with it. ChatTemplateError when none can be used at all."""
    start, has_tools = _start(tokenizer)
    best: Findings | None = None
    refusal: ChatTemplateError | None = None
    for styles, forms in ((_TEXT_STYLES, _FORMS), (_REASONED_STYLES, (_APART,)), (_CALL_STYLES, _FORMS[:1])):
        if styles is _CALL_STYLES and best is not None and not _may_be_data(best):
            break
        for style in styles:
            make = functools.lru_cache(partial(Conversation, tokenizer, style, start, has_tools=has_tools))
            for form in forms:
                try:
                    found = _grown(tokenizer, make(), form)
                except ChatTemplateError as error:
                    refusal = refusal or error
                    continue
                if found.severity is Severity.NONE:
                    return found
                if styles is not _REASONED_STYLES and (best is None or found.severity < best.severity):
                    best = found
    if best is None:
        assert refusal is not None
        raise refusal
    return best


def _may_be_data(found: Findings) -> bool:
    """Says whether plain data may do better than text: it can't be used at all, or only has something put before it."""
    if found.severity >= Severity.TOKENS:
        return True
    return all(
        difference.kind is PieceKind.TURN and difference.found.endswith(difference.expected)
        for difference, _ in found.differences
    )


def pieces_of(conversation: Conversation, prompt: str, turns: Sequence[MessageTurn]) -> list[RenderedPiece]:
    """The pieces of a trajectory as text. Thinking that the template opens belongs to the turn."""
    opened = opened_thinking(prompt)
    pieces = [RenderedPiece(PieceKind.PROMPT, prompt.removesuffix(opened))]
    for turn in turns:
        pieces.append(RenderedPiece(PieceKind.TURN, None if conversation.style.calls else opened + turn.text))
        between = conversation.between(turn.answers, turn.refs)
        opened = opened_thinking(between)
        pieces.append(RenderedPiece(PieceKind.BETWEEN, between.removesuffix(opened)))
    return [*pieces, RenderedPiece(PieceKind.TURN, opened)]


def _start(tokenizer: HubTokenizer) -> tuple[tuple[Message, ...], bool]:
    """The shortest prompt that the template takes, and whether tools appear in it."""
    refusal: ChatTemplateError | None = None
    for start in _STARTS:
        for tools in ((PROBE_TOOL,), ()):
            try:
                return start, PROBE_NAME in tokenizer.render(start, tools, generate=True)
            except ChatTemplateError as error:
                refusal = refusal or error
    assert refusal is not None
    raise refusal


def _grown(tokenizer: HubTokenizer, conversation: Conversation, form: ThinkingForm) -> Findings:
    """Grows the conversation to its full length, and keeps the first difference of each kind."""
    tools = [PROBE_TOOL] if conversation.has_tools else []
    prompt = conversation.whole(conversation.start, tools, ())
    turns: list[MessageTurn] = []
    openings = [opened_thinking(prompt)]
    differences: dict[PieceKind, tuple[Difference, int]] = {}
    tokens: str | None = None
    for number, (said, answers) in enumerate(zip(_SAID, _ANSWERS, strict=True)):
        thinks = form.always or number % 2 == 1
        text = form.text.format(said=said) if thinks else said
        refs = tuple(CallRef("probe", f"call{number}{index:04d}") for index, _ in enumerate(answers))
        turns.append(MessageTurn(text.removeprefix(openings[-1]), answers, refs, _thought(openings[-1], thinks=thinks)))
        between = conversation.between(answers, turns[-1].refs)
        openings.append(opened_thinking(between))
        whole = conversation.whole(conversation.start, tools, turns)
        pieces = _known(conversation, pieces_of(conversation, prompt, turns), tools, turns, openings)
        for difference in align(pieces, whole):
            differences.setdefault(difference.kind, (difference, len(turns)))
        tokens = tokens or _joined(tokenizer, between, whole)
    if conversation.style.reasoning and not any(turn.reasoning for turn in turns):
        raise ChatTemplateError("the chat template lets no turn think")
    return Findings(conversation, form, tuple(differences.values()), tokens)


def _thought(opened: str, *, thinks: bool) -> str:
    """Thinking that is given apart: always where the template opens it, never where it has closed it."""
    closed = any(mark in opened for mark in ("</", "<channel|>", "<|END_THINKING|>"))
    return _THOUGHT if (thinks or opened) and not closed else ""


def _known(
    conversation: Conversation,
    pieces: list[RenderedPiece],
    tools: Sequence[Mapping[str, Any]],
    turns: Sequence[MessageTurn],
    openings: Sequence[str],
) -> list[RenderedPiece]:
    """Gives turns whose text is the template's own the text that they had when they were the last one, and the thinking
    that the template had opened for them."""
    if not conversation.style.calls:
        return pieces
    known = list(pieces)
    for number in range(len(turns) - 1):
        whole = conversation.whole(conversation.start, tools, turns[: number + 1])
        begin = sum(len(piece.text or "") for piece in known[: 2 * number + 1])
        after = known[2 * number + 2].text
        assert after is not None
        end = whole.find(after, begin)
        if end < 0:
            return known
        if conversation.style.reasoning and turns[number].reasoning not in whole[begin:end]:
            raise ChatTemplateError("the chat template leaves out what was thought")
        said = whole[begin:end]
        known[2 * number + 1] = RenderedPiece(PieceKind.TURN, openings[number] + said.removeprefix(openings[number]))
    return known


def _joined(tokenizer: HubTokenizer, between: str, whole: str) -> str | None:
    """Says how the tokenizer joins the last boundary to what is before it; None if it does not."""
    ids, last = tokenizer.encode(whole), tokenizer.encode(between)
    end = ids[len(ids) - len(last) :]
    if end == last or not whole.endswith(between):
        return None
    return f"{tokenizer.decode(last)[:60]!r} became {tokenizer.decode(end)[:60]!r}"
