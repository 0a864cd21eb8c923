"""A tree of turns: the messages of one trajectory's requests, and what was sampled for them. Pure.

A request whose messages extend a recorded conversation continues it: the ids of the earlier turns are those that were
sampled, and only the new messages are encoded, at the boundary that the chat template puts there. One that does not
extend it starts a new branch, from the last turn that both share or from its own prompt, and says why and where.

Invariants: ids given to the engine are the concatenation of a branch's segments; sampled ids are never encoded again;
a turn is recorded only when it was sampled whole; ids and budgets of turns in flight count against the bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Any

from rollout.capture.errors import ApiError, bad_parameter
from rollout.capture.messages import ChatMessage, difference
from rollout.engines.base import FinishReason, GenerationResult, SamplingParams
from rollout.tokens import (
    CallRef,
    ChatTemplate,
    ChatTemplateError,
    Message,
    Segment,
    SegmentKind,
    TokenBuilder,
    Trajectory,
)


class BranchReason(StrEnum):
    """Why a branch was started."""

    FIRST = "first"
    """It is the trajectory's first one."""
    RESAMPLED = "resampled"
    """The same messages were answered before, or at the same time: another turn was sampled for them."""
    DIVERGED = "diverged"
    """A message says something else than the recorded one at its place, or is missing."""
    TOOLS = "tools"
    """Other tools are offered, which stand in the prompt."""
    TEMPLATE = "template"
    """The chat template shows the model other earlier turns once the new messages follow."""


@dataclass(eq=False, slots=True)
class RecordedTurn:
    """A sampled turn and what was given before it."""

    index: int
    """Order in which turns ended, from 0."""
    parent: RecordedTurn | None
    branch: int
    given: tuple[ChatMessage, ...]
    """Messages since the parent's turn; of a first turn, the prompt."""
    plain: tuple[Message, ...]
    """The same as they were encoded."""
    tools: tuple[Mapping[str, Any], ...]
    before: Segment
    sampled: tuple[Segment, ...]
    message: ChatMessage
    """The turn as the client got it."""
    text: str
    """The turn as it was sampled, without the end-of-turn token."""
    finish: FinishReason
    ended: bool
    """Says whether its last id is the end-of-turn token."""
    sampling: SamplingParams
    reason: BranchReason | None
    """Why it starts a branch; None where it continues one."""
    where: str
    """Place where the branch's messages differ from recorded ones."""
    queue_s: float = 0.0
    run_s: float = 0.0
    children: list[RecordedTurn] = field(default_factory=list)

    def path(self) -> tuple[RecordedTurn, ...]:
        """The turns from the prompt to this one."""
        turns: list[RecordedTurn] = []
        turn: RecordedTurn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return tuple(reversed(turns))

    def trajectory(self) -> Trajectory:
        """The tokens from the prompt to the end of this turn."""
        return Trajectory(tuple(chain.from_iterable((turn.before, *turn.sampled) for turn in self.path())))

    def conversation(self) -> tuple[Message, ...]:
        """The messages from the prompt to this turn, turns of the assistant as they were sampled."""
        turns = self.path()
        return tuple(chain.from_iterable((*t.plain, {"role": "assistant", "content": t.text}) for t in turns))


@dataclass(eq=False, slots=True)
class Pending:
    """A turn that may be sampled now. Give it to `commit` or `abandon`."""

    parent: RecordedTurn | None
    given: tuple[ChatMessage, ...]
    plain: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    before: Segment
    ids: tuple[int, ...]
    """The whole context for the engine."""
    max_new_tokens: int
    reason: BranchReason | None
    where: str


_LOCATED = (BranchReason.DIVERGED, BranchReason.TOOLS, BranchReason.TEMPLATE)
"""Reasons that say where."""


class Recorder:
    """One trajectory. `max_tokens` bounds the ids of all its branches together; `max_model_tokens` is the engine's."""

    def __init__(self, chat: ChatTemplate, *, max_tokens: int, max_model_tokens: int) -> None:
        self._chat = chat
        self._max_tokens = max_tokens
        self._max_model_tokens = max_model_tokens
        self._roots: list[RecordedTurn] = []
        self._texts: dict[tuple[Any, ...], str] = {}
        self._reserved = 0
        self.turns: list[RecordedTurn] = []
        """In the order in which they ended."""
        self.tokens = 0
        """Ids of all turns, those that branches share counted once."""
        self.branches = 0

    def plan(self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]) -> Pending:
        """Plans the turn for a request; give the plan to `reserve`. It changes nothing, so a thread may do it while
        others reserve and commit. Raises ApiError if the chat template does not take the messages."""
        offered = tuple(tools)
        turn, length, differs = self._match(messages, offered)
        given = tuple(messages[length:])
        plain = tuple(self._plain(message) for message in given)
        if turn is not None:
            try:
                before = self._boundary(turn, given, plain, offered)
            except ChatTemplateError as error:
                reason, where = BranchReason.TEMPLATE, str(error)
            else:
                ids = turn.trajectory().ids + before.ids
                return Pending(turn, given, plain, offered, before, ids, 0, _beside(turn.children, given), differs)
        elif same_tools := [turn for turn in self._roots if turn.tools == offered]:
            reason, where = _beside(same_tools, given) or BranchReason.DIVERGED, differs
        elif self._roots:
            reason, where = BranchReason.TOOLS, "tools: are not those of the recorded conversation"
        else:
            reason, where = BranchReason.FIRST, ""
        given = tuple(messages)
        plain = tuple(self._plain(message) for message in given)
        try:
            before = Segment(SegmentKind.PROMPT, self._chat.prompt_ids(plain, offered))
        except ChatTemplateError as error:
            raise bad_parameter("messages", f"can't be used: {error}") from None
        return Pending(None, given, plain, offered, before, before.ids, 0, reason, where)

    def reserve(self, pending: Pending, max_new_tokens: int) -> None:
        """Sets the budget, clamped to the room that is left. Raises ApiError where there is none."""
        model_room = self._max_model_tokens - len(pending.ids)
        room = self._max_tokens - self.tokens - self._reserved - len(pending.before.ids)
        if model_room < 1:
            problem = f"the messages have {len(pending.ids)} tokens, which leaves none of the model's "
            raise _too_long(f"{problem}{self._max_model_tokens} for a turn")
        if room < 1:
            problem = f"this trajectory has {self.tokens + self._reserved} tokens, and with the "
            problem += f"{len(pending.before.ids)} new ones of these messages no room for a turn"
            raise _too_long(f"{problem}: a trajectory may have {self._max_tokens}")
        pending.max_new_tokens = min(max_new_tokens, model_room, room)
        self._reserved += len(pending.before.ids) + pending.max_new_tokens

    def commit(
        self, pending: Pending, result: GenerationResult, message: ChatMessage, text: str, sampling: SamplingParams
    ) -> RecordedTurn:
        """Records a turn that was sampled for `pending`; `message` is what the client gets, `text` what it was made of.

        Where another turn was recorded at the same place meanwhile, it starts a branch.
        """
        self.abandon(pending)
        siblings = self._roots if pending.parent is None else pending.parent.children
        reason = pending.reason
        if reason in (None, BranchReason.FIRST):
            reason = _beside(siblings, pending.given) or reason
        branch = self.branches if reason is not None or pending.parent is None else pending.parent.branch
        turn = RecordedTurn(
            index=len(self.turns),
            parent=pending.parent,
            branch=branch,
            given=pending.given,
            plain=pending.plain,
            tools=pending.tools,
            before=pending.before,
            sampled=_segments(result),
            message=message,
            text=text,
            finish=result.finish,
            ended=self._chat.has_ended(result.ids),
            sampling=sampling,
            reason=reason,
            where=pending.where if reason in _LOCATED else "",
            queue_s=result.queue_s,
            run_s=result.run_s,
        )
        siblings.append(turn)
        self.turns.append(turn)
        self.branches += reason is not None
        self.tokens += len(pending.before.ids) + len(result.ids)
        self._texts[message.key] = text
        return turn

    def abandon(self, pending: Pending) -> None:
        """Gives back what `reserve` took."""
        self._reserved -= len(pending.before.ids) + pending.max_new_tokens

    def tips(self) -> tuple[RecordedTurn, ...]:
        """The last turn of each branch, by branch."""
        last = {turn.branch: turn for turn in self.turns}
        return tuple(last[branch] for branch in sorted(last))

    def _match(
        self, messages: Sequence[ChatMessage], tools: tuple[Mapping[str, Any], ...]
    ) -> tuple[RecordedTurn | None, int, str]:
        """The last turn of the longest recorded conversation that the messages extend, the messages up to and with it,
        and the farthest difference from any. Of equals it is the one with the same ids of calls, and else the latest.
        """
        best: RecordedTurn | None = None
        best_rank = (0, 0, -1)
        differs_at, where = -1, ""
        open_turns = [(turn, 0, 0) for turn in self._roots if turn.tools == tools]
        while open_turns:
            turn, start, same_ids = open_turns.pop()
            end = start + len(turn.given)
            at, problem = _compare((*turn.given, turn.message), messages[start : end + 1], start)
            if problem:
                if at > differs_at:
                    differs_at, where = at, problem
                continue
            same_ids += [c.id for c in turn.message.calls] == [c.id for c in messages[end].calls]
            rank = (end + 1, same_ids, turn.index)
            if rank > best_rank:
                best, best_rank = turn, rank
            open_turns += [(child, end + 1, same_ids) for child in turn.children]
        return best, best_rank[0], where

    def _boundary(
        self,
        turn: RecordedTurn,
        given: Sequence[ChatMessage],
        plain: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> Segment:
        """Returns the segment between a turn and the next one. Answers of tools come in the order of their calls."""
        if all(message.role == "tool" for message in given):
            order = {call.id: index for index, call in enumerate(turn.message.calls)}
            ranks = [order.get(message.tool_call_id or "", -1) for message in given]
            answers = list(zip(ranks, (message["content"] for message in plain), strict=True))
            if -1 not in ranks:
                answers.sort(key=lambda answer: answer[0])
            calls = [None if rank < 0 else turn.message.calls[rank] for rank, _ in answers]
            refs = [CallRef() if call is None else CallRef(call.name, call.written_id) for call in calls]
            texts = [text for _, text in answers]
            return Segment(SegmentKind.TOOL, self._chat.between_turns(texts, ended=turn.ended, refs=refs))
        conversation = (*(turn.parent.conversation() if turn.parent else ()), *turn.plain)
        ids = self._chat.continuation(conversation, turn.text, plain, tools, ended=turn.ended)
        return Segment(SegmentKind.TOOL, ids)

    def _plain(self, message: ChatMessage) -> Message:
        """As the chat template gets it: turns that were sampled here as they were sampled, wherever they stand, and
        special tokens in what tools and users say made harmless: agents without tool calls send outputs as a user's."""
        if message.role == "assistant" and (text := self._texts.get(message.key)) is not None:
            return {"role": "assistant", "content": text}
        if message.role in ("tool", "user"):
            return {"role": message.role, "content": self._chat.defuse(message.content)}
        return message.plain()


def _compare(recorded: Sequence[ChatMessage], given: Sequence[ChatMessage], start: int) -> tuple[int, str]:
    """Returns the index of the first message that differs from the recorded one, and how; (-1, "") if none does."""
    for index, message in enumerate(recorded):
        at = start + index
        if index >= len(given):
            return at, f"messages[{at}]: is missing"
        if (problem := difference(message, given[index])) is not None:
            return at, f"messages[{at}].{problem}"
    return -1, ""


def _beside(siblings: Sequence[RecordedTurn], given: Sequence[ChatMessage]) -> BranchReason | None:
    """Why messages start a branch beside turns that follow the same one; None where there are none."""
    if not siblings:
        return None
    answered = any(len(turn.given) == len(given) and not _compare(turn.given, given, 0)[1] for turn in siblings)
    return BranchReason.RESAMPLED if answered else BranchReason.DIVERGED


def _segments(result: GenerationResult) -> tuple[Segment, ...]:
    builder = TokenBuilder(())
    builder.add_sampled(result)
    return builder.build().segments[1:]


def _too_long(message: str) -> ApiError:
    """400 with the code by which agents know that they have to shorten their history."""
    return ApiError(400, message, code="context_length_exceeded", param="messages")
