"""The turns of a trajectory as a tree: each was sampled after its parent and the messages that followed it.

A branch is a path from a prompt to a turn that nothing continues; it is what one conversation's tokens are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Any

from rollout.capture.messages import ChatMessage
from rollout.engines.base import FinishReason, SamplingParams
from rollout.tokens import Message, Segment, Trajectory

__all__ = ["BranchReason", "Pending", "Turn"]


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
class Turn:
    """A sampled turn and what was given before it."""

    index: int
    """Order in which turns ended, from 0."""
    parent: Turn | None
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
    """Whether its last id is the end-of-turn token."""
    sampling: SamplingParams
    reason: BranchReason | None
    """Why it starts a branch; None where it continues one."""
    where: str
    """Where the branch's messages differ from recorded ones."""
    queue_s: float = 0.0
    run_s: float = 0.0
    children: list[Turn] = field(default_factory=list)

    def path(self) -> tuple[Turn, ...]:
        """The turns from the prompt to this one."""
        turns: list[Turn] = []
        turn: Turn | None = self
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

    parent: Turn | None
    given: tuple[ChatMessage, ...]
    plain: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    before: Segment
    ids: tuple[int, ...]
    """The whole context for the engine."""
    max_new_tokens: int
    reason: BranchReason | None
    where: str
