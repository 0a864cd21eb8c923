"""Counts how often a trajectory's tokens are not what rendering and tokenizing its conversation would give. Pure.

A trajectory's ids are exact by construction: sampled ids are kept, and only what stands between turns is encoded. They
may still differ from the tokens of the conversation as a whole, mostly because a model samples other tokens for a text
than its tokenizer would choose. That is expected and harms nothing here; it is what would go wrong if turns were
encoded again. What must not happen is that the template writes a prompt or a boundary otherwise than was assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import Any

from fairbox.errors import ConfigError
from rollout.tokens.alignment import PieceKind, align
from rollout.tokens.chat import ChatTemplate
from rollout.tokens.probe import Severity, pieces_of
from rollout.tokens.segment import SegmentKind
from rollout.tokens.tokenizer import ChatTemplateError, Message
from rollout.tokens.trajectory import Trajectory

_FRACTION = 0.05
"""Enough to find a template that does not fit within a hundred trajectories, at a cost that nobody notices."""


class DriftKind(StrEnum):
    """Results of comparing a trajectory with its conversation, up to where its last turn begins."""

    EXACT = "exact"
    """The same ids."""
    RETOKENIZED = "retokenized"
    """The same text in other tokens, which the model chose itself. Harmless, as ids are kept."""
    TURN_REWRITTEN = "turn_rewritten"
    """The template writes a turn otherwise than it was sampled: trims it, drops its thinking, orders its calls anew.
    Harmless for training, as ids are kept; a chat server would show the turn otherwise."""
    PROMPT_REWRITTEN = "prompt_rewritten"
    """The template changes the prompt when the conversation grows: a fault, unless `rewrites` is `keep`."""
    BOUNDARY = "boundary"
    """The stretch between turns is not what the template writes there: a fault."""
    UNREPEATABLE = "unrepeatable"
    """The template refuses the conversation as a whole, or renders its prompt otherwise than before, as one with the
    time of day: nothing can be said."""

    @property
    def fault(self) -> bool:
        """Says whether the tokens are not those that the template would give."""
        return self in (DriftKind.PROMPT_REWRITTEN, DriftKind.BOUNDARY)


class DriftCounter:
    """Looks at a fraction of all trajectories, chosen by their ids. `fraction` is from 0 to 1."""

    def __init__(self, chat: ChatTemplate, fraction: float = _FRACTION) -> None:
        if not 0 <= fraction <= 1:
            raise ConfigError(f"fraction is {fraction}, must be from 0 to 1")
        self._chat = chat
        self._bound = int(fraction * 2**32)
        # A template that was loaded although it does more than rewrite turns was chosen so.
        self._known = chat.findings.severity > Severity.TURN
        self._counts: Counter[DriftKind] = Counter()
        self.first_fault: str | None = None
        """The id of the first trajectory with a fault that loading the template did not find."""

    def statistics(self) -> dict[DriftKind, int]:
        """Number of trajectories of each kind; kinds that did not occur are 0."""
        return {kind: self._counts[kind] for kind in DriftKind}

    def see(
        self,
        trajectory_id: str,
        trajectory: Trajectory,
        messages: Sequence[Message],
        *,
        prompt_messages: int,
        tools: Sequence[Mapping[str, Any]],
    ) -> DriftKind | None:
        """Counts a trajectory that has ended; None when it is not one of the fraction. Never raises.

        `trajectory_id` is hexadecimal, 8 digits at least; the first `prompt_messages` messages are the prompt.
        """
        if int(trajectory_id[:8], 16) >= self._bound:
            return None
        kind = drift_of(self._chat, trajectory, messages, prompt_messages=prompt_messages, tools=tools)
        self._counts[kind] += 1
        if kind.fault and self.first_fault is None and not self._known:
            self.first_fault = trajectory_id
        return kind


def drift_of(
    chat: ChatTemplate,
    trajectory: Trajectory,
    messages: Sequence[Message],
    *,
    prompt_messages: int,
    tools: Sequence[Mapping[str, Any]],
) -> DriftKind:
    """Compares one trajectory, up to its last answer, with its conversation. Costs a rendering of each turn."""
    turns = chat.turns_of(messages[prompt_messages:])
    between = [segment.ids for segment in trajectory.segments if segment.kind is SegmentKind.TOOL]
    try:
        prompt = chat.prompt_text(messages[:prompt_messages], tools)
        whole = chat.conversation.whole(messages[:prompt_messages], tools, turns)
        if _before_last_turn(trajectory) == chat.encode(whole):
            return DriftKind.EXACT
        if len(between) != len(turns):
            return DriftKind.BOUNDARY
        if chat.encode(prompt) != trajectory.prompt_ids:
            return DriftKind.UNREPEATABLE
        for turn, kept in zip(turns, between, strict=True):
            if kept not in (chat.between_turns(turn.answers, ended=ended, refs=turn.refs) for ended in (True, False)):
                return DriftKind.BOUNDARY
        kinds = {difference.kind for difference in align(pieces_of(chat.conversation, prompt, turns), whole)}
    except ChatTemplateError:
        return DriftKind.UNREPEATABLE
    if PieceKind.BETWEEN in kinds:
        return DriftKind.BOUNDARY
    if PieceKind.PROMPT in kinds:
        return DriftKind.PROMPT_REWRITTEN
    rewritten = PieceKind.TURN in kinds or chat.conversation.style.calls
    return DriftKind.TURN_REWRITTEN if rewritten else DriftKind.RETOKENIZED


def _before_last_turn(trajectory: Trajectory) -> tuple[int, ...]:
    last = len(trajectory.segments)
    while trajectory.segments[last - 1].kind is SegmentKind.SAMPLED:
        last -= 1
    return tuple(chain.from_iterable(segment.ids for segment in trajectory.segments[:last]))
