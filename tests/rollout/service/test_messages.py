"""Trajectories as messages: everything survives."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from executor_service import Cause
from rollout.dump import record_of
from rollout.engines import FinishReason, SamplingParams
from rollout.loop import RequestState, StopReason, Task, ToolCallRecord, TrajectoryResult, TurnRecord
from rollout.loop.results import BranchPoint, PhaseTimes
from rollout.rewards import Reward
from rollout.service.messages import trajectory_message, trajectory_result
from rollout.tokens import ChatTemplate, Segment, SegmentKind, Trajectory
from rollout.tools import ToolOutcome
from rollout.v1 import rollout_pb2 as pb

TASK = Task("g", ({"role": "user", "content": "?"},), "3", "mine", "here:1")


def float32(value: float) -> float:
    (found,) = struct.unpack("f", struct.pack("f", value))
    return float(found)


def row(*lengths: int) -> Trajectory:
    segments = [Segment(SegmentKind.PROMPT, (1, 2, 3))]
    for number, length in enumerate(lengths):
        ids = tuple(range(100 * number, 100 * number + length))
        if number % 2:
            segments.append(Segment(SegmentKind.TOOL, ids))
        else:
            logprobs = tuple(float32(-each / 7) for each in ids)
            segments.append(Segment(SegmentKind.SAMPLED, ids, logprobs, f"v{number}"))
    return Trajectory(tuple(segments))


ARGUMENTS = {"a": [1, None, "\ud800"]}
CALL = ToolCallRecord(1, "echo", ARGUMENTS, "raw", ToolOutcome.OK, "text", True, 9, 0.1, 0.2, {"x": 1}, 0.5)
WHOLE = TrajectoryResult(
    trajectory_id="1" * 32,
    uid="g",
    index=7,
    trajectory=row(3, 2, 4),
    messages=({"role": "user", "content": "?"}, {"role": "assistant", "content": "half of a pair: \ud800"}),
    tool_calls=(CALL, replace(CALL, name="", arguments=None, reward=None)),
    state=RequestState.COMPLETED,
    stop_reason=StopReason.ANSWERED,
    cause=Cause.POLICY,
    turns=2,
    sampling=SamplingParams(seed=2**62, stop_token_ids=(2, 3)),
    times=PhaseTimes(0.1, 0.2, 0.3, 0.4, 1.0, 0.05),
    started_at=1e9 + 0.25,
    turn_records=(TurnRecord(0.0, 0.5, FinishReason.STOP, 0.7), TurnRecord(0.7, 0.9, FinishReason.LENGTH)),
    attempts=2,
    reward=Reward(0.1 + 0.2, {"part": 1 / 3}, {1: 0.1}),
    tool_rewards={"echo": 0.5},
)
RESULTS = {
    "whole": WHOLE,
    "condensed": replace(WHOLE, earlier=(row(1), row(2, 1, 1))),
    "branch": replace(WHOLE, parent_id="2" * 32, branch_point=BranchPoint(1, 5)),
    "without a turn": replace(
        WHOLE, trajectory=row(), turns=0, cause=Cause.TASK, turn_records=(), started_at=None, reward=Reward(0.0)
    ),
    "failed": replace(
        WHOLE, state=RequestState.FAILED, stop_reason=StopReason.INFRA, cause=Cause.INFRA, error="away", reward=None
    ),
    "unscored": replace(WHOLE, cause=Cause.INFRA, unscored=True, error="scoring: no", reward=None),
    "bad task": replace(WHOLE, cause=Cause.TASK, unscored=True, error="scoring: no", reward=None),
}


def record(result: TrajectoryResult, chat: ChatTemplate) -> dict[str, Any]:
    return record_of(result, TASK, step=1, model="m", decode=chat.decode_plain)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_as_it_was(name: str, chat: ChatTemplate) -> None:
    result = RESULTS[name]
    message = trajectory_message(result, record(result, chat), "mine")
    found = trajectory_result(pb.Trajectory.FromString(message.SerializeToString()))
    assert found == result
    assert message.id == "mine"
    assert message.masked == result.masked
    assert message.HasField("reward") == (result.reward is not None)


def test_numbers_that_are_not_finite_are_refused(chat: ChatTemplate) -> None:
    result = replace(WHOLE, tool_rewards={"echo": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        trajectory_message(result, record(result, chat), "mine")


def test_a_message_whose_parts_contradict_each_other_is_refused(chat: ChatTemplate) -> None:
    message = trajectory_message(WHOLE, record(WHOLE, chat), "mine")
    message.rows[0].segments[0].length += 1
    with pytest.raises(ValueError, match="segments of 10 ids stand beside 9"):
        trajectory_result(message)
