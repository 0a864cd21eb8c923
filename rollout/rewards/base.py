"""What a reward function gets, and what it gives.

A function that can't say what a trajectory is worth raises `NotScored`, with who could have caused that. It never gives
a zero in its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from executor_service import Cause, ExecutorClient
from fairbox.errors import FairboxError
from rollout.tokens.tokenizer import Message

if TYPE_CHECKING:
    from rollout.loop.limits import StopReason
    from rollout.loop.results import ToolCallRecord, TrajectoryResult
    from rollout.loop.task import Task


@dataclass(frozen=True, slots=True)
class Reward:
    """What a trajectory is worth. Every number is finite. A masked trajectory has none at all."""

    value: float
    """What training uses: of the whole trajectory, `turns` included."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """What explains it."""
    turns: Mapping[int, float] = field(default_factory=dict)
    """Turn of the assistant, from 1 -> what of `value` belongs to that turn; the rest belongs to the last one."""

    def __post_init__(self) -> None:
        assert math.isfinite(self.value)
        assert all(math.isfinite(part) for part in self.parts.values())
        assert all(turn >= 1 and math.isfinite(part) for turn, part in self.turns.items())


class NotScored(FairboxError):  # noqa: N818 - an answer, not a failure
    """A trajectory has no reward, because of what is not the policy's doing: it is masked, with this cause."""

    def __init__(self, cause: Cause, problem: str) -> None:
        assert cause is not Cause.POLICY  # what the policy causes is a reward
        super().__init__(problem)
        self.cause = cause


class RewardFault(NotScored):
    """A reward function is broken: it raised what it must not, or gave no finite number. The cause is INFRA, and to
    score again would break again."""

    def __init__(self, problem: str) -> None:
        super().__init__(Cause.INFRA, problem)


@dataclass(frozen=True, slots=True)
class RewardServices:
    """What reward functions may use beside the sample."""

    executor: ExecutorClient | None = None
    """None: there is no executor. A function that needs one raises NotScored(INFRA)."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A trajectory that has ended and is not masked, or a text alone where other trainers ask for its reward."""

    text: str
    """The assistant's last turn; empty when there is none."""
    ground_truth: str
    data_source: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The other columns of the data that it comes from."""
    messages: tuple[Message, ...] = ()
    """The conversation, the prompt's messages included; empty where only the text is known."""
    tool_calls: tuple[ToolCallRecord, ...] = ()
    turns: int = 1
    """Turns of the assistant."""
    tool_rewards: Mapping[str, float] = field(default_factory=dict)
    """Tool name -> what it gave for the trajectory."""
    trajectory_id: str = ""
    """Empty where only the text is known."""
    stop_reason: StopReason | None = None
    """None where only the text is known."""
    tokens: int | None = None
    """Ids of prompt and response together; None where only the text is known."""

    @classmethod
    def of(cls, task: Task, result: TrajectoryResult) -> Self:
        """That of a trajectory."""
        return cls(
            text=result.final_text,
            ground_truth=task.ground_truth,
            data_source=task.data_source,
            row=task.row,
            messages=result.messages,
            tool_calls=result.tool_calls,
            turns=result.turns,
            tool_rewards=result.tool_rewards,
            trajectory_id=result.trajectory_id,
            stop_reason=result.stop_reason,
            tokens=len(result.trajectory.ids),
        )
