"""Trajectories with known tokens, for what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executor_service import Cause
from rollout.engines import SamplingParams
from rollout.loop import PhaseTimes, RequestState, StopReason, TrajectoryResult
from rollout.rewards import Reward
from rollout.tokens import Segment, SegmentKind, Trajectory


def sampled(ids: Sequence[int], *, version: str = "1", logprob: float = -0.5) -> Segment:
    return Segment(SegmentKind.SAMPLED, tuple(ids), (logprob,) * len(ids), version)


def tool(ids: Sequence[int]) -> Segment:
    return Segment(SegmentKind.TOOL, tuple(ids))


def result(
    prompt: Sequence[int],
    *segments: Segment,
    uid: str = "u",
    reward: float | None = None,
    infra: bool = False,
    **fields: Any,
) -> TrajectoryResult:
    """Ended by an answer, or, with `infra`, by the service. `fields` are those of TrajectoryResult."""
    defaults: dict[str, Any] = {
        "trajectory_id": f"t-{uid}",
        "uid": uid,
        "index": 0,
        "trajectory": Trajectory((Segment(SegmentKind.PROMPT, tuple(prompt)), *segments)),
        "messages": ({"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}),
        "tool_calls": (),
        "state": RequestState.FAILED if infra else RequestState.COMPLETED,
        "stop_reason": StopReason.INFRA if infra else StopReason.ANSWERED,
        "cause": Cause.INFRA if infra else Cause.POLICY,
        "turns": sum(segment.kind is SegmentKind.SAMPLED for segment in segments),
        "sampling": SamplingParams(),
        "times": PhaseTimes(engine_s=1.0, tool_run_s=0.5, total_s=2.0),
        "error": "the executor is gone" if infra else None,
        "reward": None if reward is None else Reward(reward),
    }
    return TrajectoryResult(**defaults | fields)
