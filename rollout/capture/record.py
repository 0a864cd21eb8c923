"""Captured trajectories as results: their branches in the loop's types, and as rows of a dump. Pure.

Each branch is a whole conversation from its prompt on. Branches that share turns share their ids, so a trainer that
takes several masks the shared ones in all but one: `inherited` says how many response ids a branch has from its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from executor_service import Cause
from fairbox.bounded_json import loads
from rollout.capture.recorder import BranchReason, RecordedTurn, Recorder
from rollout.dump import Decode, record_of
from rollout.engines.base import FinishReason
from rollout.loop.limits import StopReason
from rollout.loop.results import PhaseTimes, ToolCallRecord, TrajectoryResult
from rollout.loop.state import RequestState
from rollout.loop.task import Task
from rollout.rewards.base import Reward
from rollout.tokens import Message, Trajectory
from rollout.tools import ToolOutcome

STOPPED_BY_AGENT = "agent"
"""Stop reason of a branch whose last turn asks for tools: the agent did not come back with their answers."""


@dataclass(frozen=True, slots=True)
class CapturedBranch:
    """One conversation of a trajectory, from its prompt to its last turn."""

    index: int
    reason: BranchReason
    """Why it was started."""
    where: str
    """Place where its messages differ from recorded ones; may be empty."""
    parent: int | None
    """The branch that it shares its first turns with; None when it has a prompt of its own."""
    inherited: int
    """Response ids that it shares with its parent, from the first on."""
    trajectory: Trajectory
    messages: tuple[Message, ...]
    """Turns of the assistant as they were sampled."""
    turns: tuple[RecordedTurn, ...]

    @property
    def stop_reason(self) -> str:
        """A `StopReason` where one fits, or `agent`."""
        last = self.turns[-1]
        if last.finish is FinishReason.LENGTH:
            return StopReason.TURN_LENGTH
        if last.finish is FinishReason.ABORT:
            return StopReason.INFRA
        return STOPPED_BY_AGENT if last.message.calls else StopReason.ANSWERED


@dataclass(frozen=True, slots=True)
class CapturedTrajectory:
    """Everything that is known of a trajectory. `branches` is empty while no turn has ended."""

    trajectory_id: str
    branches: tuple[CapturedBranch, ...]
    latest: int | None
    """The branch of the turn that ended last."""
    reward: float | None
    """As it was attached; None when it is masked or nobody attached one."""
    cause: Cause
    """INFRA when the service failed and no turn followed."""
    error: str | None
    failures: int
    """Requests that failed by the service, in all."""
    tokens: int
    """Ids of all branches, shared ones counted once."""

    @property
    def masked(self) -> bool:
        """Says whether it must not reach a reward, a group's mean or a loss."""
        return self.cause is Cause.INFRA

    @property
    def branch(self) -> CapturedBranch:
        """The latest branch."""
        assert self.latest is not None
        return self.branches[self.latest]


def captured(
    trajectory_id: str, recorder: Recorder, reward: float | None, error: str | None, failures: int
) -> CapturedTrajectory:
    """A snapshot of what is held. `error` is what failed in the service since the last turn: then the agent may have
    given up for that reason."""
    return CapturedTrajectory(
        trajectory_id=trajectory_id,
        branches=tuple(_branch(tip) for tip in recorder.tips()),
        latest=recorder.turns[-1].branch if recorder.turns else None,
        reward=reward if error is None else None,
        cause=Cause.POLICY if error is None else Cause.INFRA,
        error=error,
        failures=failures,
        tokens=recorder.tokens,
    )


def record_json(found: CapturedTrajectory, *, model: str, decode: Decode) -> dict[str, Any]:
    """Returns the body of `GET /t/{id}`; each of `branches` is a row as dumps have them."""
    return {
        "trajectory_id": found.trajectory_id,
        "model": model,
        "reward": found.reward,
        "cause": found.cause,
        "masked": found.masked,
        "error": found.error,
        "failures": found.failures,
        "tokens": found.tokens,
        "latest": found.latest,
        "branches": [_row(found, branch, model, decode) for branch in found.branches],
    }


def _branch(tip: RecordedTurn) -> CapturedBranch:
    path = tip.path()
    start = next(turn for turn in path if turn.branch == tip.branch)
    assert start.reason is not None
    inherited = 0 if start.parent is None else len(start.parent.trajectory().response_ids)
    return CapturedBranch(
        index=tip.branch,
        reason=start.reason,
        where=start.where,
        parent=None if start.parent is None else start.parent.branch,
        inherited=inherited,
        trajectory=tip.trajectory(),
        messages=tip.conversation(),
        turns=path,
    )


def _row(found: CapturedTrajectory, branch: CapturedBranch, model: str, decode: Decode) -> dict[str, Any]:
    turns = branch.turns
    times = PhaseTimes(queue_s=sum(turn.queue_s for turn in turns), engine_s=sum(turn.run_s for turn in turns))
    result = TrajectoryResult(
        trajectory_id=f"{found.trajectory_id}.{branch.index}",
        uid=found.trajectory_id,
        index=branch.index,
        trajectory=branch.trajectory,
        messages=branch.messages,
        tool_calls=_tool_calls(turns),
        state=RequestState.FAILED if found.masked else RequestState.COMPLETED,
        stop_reason=StopReason.INFRA if found.masked else cast(StopReason, branch.stop_reason),
        cause=found.cause,
        turns=len(turns),
        sampling=turns[-1].sampling,
        times=times,
        error=found.error,
        reward=None if found.reward is None else Reward(found.reward),
    )
    task = Task(found.trajectory_id, (), ground_truth="", data_source="capture", where="")
    about = {name: getattr(branch, name) for name in ("index", "reason", "where", "parent", "inherited")}
    about["temperatures"] = [turn.sampling.temperature for turn in turns]
    return record_of(result, task, step=0, model=model, decode=decode) | {"branch": about}


def _tool_calls(turns: Sequence[RecordedTurn]) -> tuple[ToolCallRecord, ...]:
    """The calls of each turn with the answers that the agent gave in the next request."""
    records = []
    for number, turn in enumerate(turns):
        following = turns[number + 1].given if number + 1 < len(turns) else ()
        answers = {m.tool_call_id: m.content for m in following if m.role == "tool"}
        for call in turn.message.calls:
            text = answers.get(call.id, "")
            records.append(
                ToolCallRecord(
                    turn=number + 1,
                    name=call.name,
                    arguments=_arguments(call.arguments),
                    raw=call.arguments,
                    outcome=cast(ToolOutcome, "external" if call.id in answers else "unanswered"),
                    text=text,
                    total_bytes=len(text.encode()),
                )
            )
    return tuple(records)


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        value = loads(text, depth=64, left=[200_000], finite=True)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
