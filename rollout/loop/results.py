"""Records of trajectories that have ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from executor_service import Cause
from rollout.engines.base import FinishReason, SamplingParams
from rollout.loop.limits import StopReason
from rollout.loop.state import RequestState
from rollout.rewards.base import Reward
from rollout.tokens.tokenizer import Message
from rollout.tokens.trajectory import Trajectory
from rollout.tools.base import ToolOutcome


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Seconds that a trajectory spent in each phase. Parallel calls add up."""

    queue_s: float = 0.0
    """Waiting for a row of the engine."""
    engine_s: float = 0.0
    """Generating."""
    tool_wait_s: float = 0.0
    """Waiting for the limiter and the executor."""
    tool_run_s: float = 0.0
    """In tools, from leaving their queues to their answers."""
    total_s: float = 0.0
    """From the start of the last attempt to its end, on the wall; scoring comes after it."""
    score_s: float = 0.0
    """Scoring, on the wall."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """When a turn of the assistant was, in seconds from the trajectory's start, and why the engine ended it."""

    began_s: float
    """When the engine was asked."""
    sampled_s: float
    """When the turn was there."""
    finish: FinishReason
    answered_s: float | None = None
    """When its calls were answered; None: none were."""


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """One call and its answer."""

    turn: int
    """From 1."""
    name: str
    """Empty when the call could not be parsed."""
    arguments: dict[str, Any] | None
    """None when the call could not be parsed."""
    raw: str
    """The call as the model wrote it."""
    outcome: ToolOutcome
    text: str
    """The answer, as the model got it."""
    truncated: bool = False
    total_bytes: int = 0
    wait_s: float = 0.0
    run_s: float = 0.0
    unshown: dict[str, int] = field(default_factory=dict)
    """MIME type -> bytes of what was displayed and is not in the text."""
    reward: float | None = None
    """The tool's reward for this call; None if it gave none."""


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """Point where a trajectory was forked from its parent: the turns and ids that both share."""

    turns: int
    response_tokens: int
    """Ids after the prompt."""


@dataclass(frozen=True, slots=True)
class TrajectoryResult:
    """A trajectory that has ended, however it ended."""

    trajectory_id: str
    """32 hexadecimal digits; a new one for each attempt."""
    uid: str
    """The group: trajectories of one task share it."""
    index: int
    """Position in the run."""
    trajectory: Trajectory
    """Its last part, which is all of it unless `earlier` has some."""
    messages: tuple[Message, ...]
    """The conversation, the prompt's messages included, with every answer as the tools gave it."""
    tool_calls: tuple[ToolCallRecord, ...]
    state: RequestState
    stop_reason: StopReason
    cause: Cause
    turns: int
    sampling: SamplingParams
    """As given; `seed` is that of the trajectory, from which each turn derives its own."""
    times: PhaseTimes = field(default_factory=PhaseTimes)
    started_at: float | None = None
    """When its last attempt started, or the trajectory that it was forked from: seconds since 1970, for dumps alone."""
    turn_records: tuple[TurnRecord, ...] = ()
    """One for each turn; empty where who played it keeps none."""
    attempts: int = 1
    """Including those whose INFRA failure was retried."""
    error: str | None = None
    """Reason of the failure, if it is masked."""
    reward: Reward | None = None
    """None when it is masked."""
    unscored: bool = False
    """Says whether it was played and could not be scored; `cause` says who could have caused that."""
    tool_rewards: dict[str, float] = field(default_factory=dict)
    parent_id: str | None = None
    """The trajectory that it was forked from; None: it was not. Tokens, calls and times of the part that they have in
    common are in both results."""
    branch_point: BranchPoint | None = None

    earlier: tuple[Trajectory, ...] = ()
    """Parts before the last one, in order. Each was closed when the conversation was condensed (`Condensation`), and
    what was left of it is the prompt of the next part."""

    @property
    def parts(self) -> tuple[Trajectory, ...]:
        """All parts, in order. Each is a row of exact tokens for itself; the reward is that of all together."""
        return (*self.earlier, self.trajectory)

    @property
    def masked(self) -> bool:
        """Says whether no reward, mean or loss may use it: the service failed it, or nothing could score it."""
        return self.unscored or self.cause is Cause.INFRA

    @property
    def final_text(self) -> str:
        """The assistant's last turn; empty when there is none."""
        last = self.messages[-1] if self.messages else {"role": "", "content": ""}
        return last["content"] if last["role"] == "assistant" else ""

    def _repr_html_(self) -> str:
        from rollout.loop.html import trajectory_html  # for notebooks alone

        return trajectory_html(self)
