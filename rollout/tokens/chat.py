"""Turns conversations into ids exactly as the model's own chat template would, piece by piece.

A prompt is rendered once. After each sampled turn only what the template puts between that turn and the next is
encoded: the end-of-turn token if the turn was cut off before it, the tools' answers, the header of the next turn.
Pieces meet at special tokens, which no tokenizer merges with their neighbours. Loading grows probe conversations and
compares (`rollout.tokens.probe`); a template that rewrites what was there before is refused, unless `rewrites` says
that the tokens are to be kept as they were.

Where a template has no place for tools, their signatures go into the system turn in the Hermes format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from rollout.tokens.alignment import PieceKind
from rollout.tokens.conversation import CallRef, Conversation, MessageTurn, opened_thinking
from rollout.tokens.probe import Findings, Severity, probe
from rollout.tokens.tokenizer import ChatTemplateError, HubTokenizer, Message

__all__ = ["ChatTemplate", "ChatTemplateError", "Rewrites"]

_ALSO_ENDS = ("<|eom_id|>",)
"""Tokens that end a turn as well as the one that the template writes: Llama 3.1's, of turns that expect an answer."""


class Rewrites(StrEnum):
    """Policies for a template that rewrites earlier turns or the prompt, such as one that drops earlier thinking."""

    REFUSE = "refuse"
    """Don't load it."""
    KEEP = "keep"
    """The model sees the prompt and its earlier turns, and is trained on them, as they were, and what stands between
    turns is always what the template writes after a first turn; a chat server would show them otherwise."""


class ChatTemplate:
    """The chat template of one tokenizer, verified. Raises ChatTemplateError when it can't be exact.

    `stop_token_ids` are further ids that end the model's output, as its generation settings name them.
    """

    def __init__(
        self, tokenizer: HubTokenizer, *, rewrites: Rewrites = Rewrites.REFUSE, stop_token_ids: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self.findings = probe(tokenizer)
        """Result of probing the template."""
        if (problem := _problem(self.findings, rewrites)) is not None:
            raise ChatTemplateError(problem)
        self.conversation: Conversation = self.findings.conversation
        """The template's own rendering of prompts and turns."""
        special = tokenizer.special_tokens
        self.end_of_turn = special[self.conversation.end]
        """Id of the token that ends an assistant's turn."""
        self._ends = {self.end_of_turn, *(special[text] for text in _ALSO_ENDS if text in special)}
        self._stops = tuple(dict.fromkeys((self.end_of_turn, *self._ends, *stop_token_ids)))
        self._opened = opened_thinking(self.conversation.between(("42",)))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a turn when one is sampled; `end_of_turn` is the first."""
        return self._stops

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """Ids up to where the assistant's next turn begins. `tools` are OpenAI function schemas.

        Raises ChatTemplateError for a conversation that the template refuses, or that no tokenizer takes.
        """
        return self._tokenizer.encode(self.prompt_text(messages, tools))

    def prompt_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The text that `prompt_ids` encodes."""
        _check_text(messages)
        return self.conversation.whole(messages, tools, ())

    def between_turns(self, answers: Sequence[str], *, ended: bool, refs: Sequence[CallRef] = ()) -> tuple[int, ...]:
        """Ids between a sampled turn and the next one, with the tools' answers, in their order.

        `ended` says whether the turn has its end (`has_ended`); a turn that was cut off gets it here. `refs` are the
        calls that are answered; templates that name them in the answers need them.
        """
        ids = self._tokenizer.encode(self.conversation.between(answers, refs))
        if ids[:1] != (self.end_of_turn,):
            raise ChatTemplateError(f"the tokenizer does not keep {self.conversation.end} apart from what follows it")
        return ids[1:] if ended else ids

    def has_ended(self, ids: Sequence[int]) -> bool:
        """Says whether a sampled turn has its own end; one that stopped at another stop token has not."""
        return bool(ids) and ids[-1] in self._ends

    def turn_text(self, ids: Sequence[int]) -> str:
        """The assistant's text in a sampled turn, without the token that ended it."""
        if ids and ids[-1] in self._stops:
            ids = ids[:-1]
        return self._tokenizer.decode(ids)

    def in_thought(self, text: str, prompt_text: str | None = None) -> str:
        """A turn's text behind what the template itself wrote of the turn (`<think>`), for parsers of tool calls.

        `prompt_text` is given for the first turn, which follows the prompt and not an answer.
        """
        return (self._opened if prompt_text is None else opened_thinking(prompt_text)) + text

    def drops_old_thinking(self) -> bool:
        """Says whether the template changes earlier turns when another user message follows, as most that think do.

        Trajectories here have one question each, so it does not touch them.
        """
        said = "Yes." if self.conversation.style.calls else "<think>\nWhy?\n</think>\n\nYes."
        start = [dict(message) for message in self.conversation.start]
        turn = {"role": "assistant", "content": said}
        try:
            before = self._tokenizer.render([*start, turn], (), generate=False)
            after = self._tokenizer.render([*start, turn, {"role": "user", "content": "And?"}], (), generate=False)
        except ChatTemplateError:
            return False
        return not after.startswith(before.rstrip())

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text -> id of the tokens that structure a conversation."""
        return self._tokenizer.special_tokens

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included. Ids that are no whole character become U+FFFD."""
        return self._tokenizer.decode(ids)

    def continuation(
        self,
        conversation: Sequence[Message],
        turn: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        ended: bool,
    ) -> tuple[int, ...]:
        """Ids between a sampled turn and the next one, with `messages` of any role in their order.

        `conversation` is what stands before the turn, with sampled turns as text, and `turn` its text. Raises
        ChatTemplateError where the template would show the model other earlier turns once the messages follow, as those
        do that leave out the thoughts before a new question.
        """
        before = self.prompt_text(conversation, tools) + turn
        whole = self.prompt_text([*conversation, {"role": "assistant", "content": turn}, *messages], tools)
        if not whole.startswith(before):
            same = next(i for i, (a, b) in enumerate(zip(before, whole + "\0", strict=False)) if a != b)
            was, now = before[same : same + 60], whole[same : same + 60]
            raise ChatTemplateError(
                f"the chat template changes earlier turns before these messages: {was!r} to {now!r}"
            )
        ids = self._tokenizer.encode(whole[len(before) :])
        if ids[:1] != (self.end_of_turn,):
            raise ChatTemplateError(f"the chat template does not end a turn like this one as others: {turn[-40:]!r}")
        return ids[1:] if ended else ids

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

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text, special tokens recognised."""
        return self._tokenizer.encode(text)

    def turns_of(self, messages: Sequence[Message]) -> list[MessageTurn]:
        """The answered turns in the messages after a prompt: those of the assistant with the tools' answers."""
        turns: list[MessageTurn] = []
        for message in messages:
            if message["role"] == "assistant":
                turns.append(MessageTurn(message["content"], ()))
            elif turns:
                ref = CallRef(message.get("name", ""), message.get("tool_call_id"))
                last = turns[-1]
                turns[-1] = MessageTurn(last.text, (*last.answers, message["content"]), (*last.refs, ref))
        return [turn for turn in turns if turn.answers]


def _problem(findings: Findings, rewrites: Rewrites) -> str | None:
    severity = findings.severity
    if findings.tokens is not None:
        return f"the tokenizer joins the chat template's pieces to other ids than the whole: {findings.tokens}"
    if severity is Severity.NONE or rewrites is Rewrites.KEEP:
        return None
    difference = max(findings.differences, key=lambda found: list(PieceKind).index(found[0].kind))[0]
    what = {
        PieceKind.PROMPT: "it changes the prompt when the conversation grows",
        PieceKind.TURN: f"it changes turn {difference.turn} when it has been answered",
        PieceKind.BETWEEN: f"what it writes after turn {difference.turn} depends on the rest of the conversation",
    }[difference.kind]
    text = f"the chat template is not append-only: {what}: {difference.expected!r} became {difference.found!r}"
    return f"{text}; rewrites=keep keeps the tokens as they were (docs/how-to/chat-templates.md)"


def _check_text(messages: Sequence[Message]) -> None:
    for index, message in enumerate(messages):
        for name, value in message.items():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ChatTemplateError(
                    f"messages[{index}].{name} has half of a surrogate pair at character {error.start}, "
                    "which no tokenizer takes"
                ) from None
