"""Trajectories as messages, and back. Pure.

Invariants: ids, mask, logprobs and weight versions survive to the last bit; a message alone, without the service's
data, is enough to make the result again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from executor_service import Cause
from rollout.engines.base import FinishReason, SamplingParams
from rollout.loop.limits import StopReason
from rollout.loop.results import (
    BranchPoint,
    PhaseTimes,
    ToolCallRecord,
    TrajectoryResult,
    TurnRecord,
)
from rollout.loop.state import RequestState
from rollout.rewards.base import Reward
from rollout.tokens.segment import Segment, SegmentKind
from rollout.tokens.trajectory import Trajectory
from rollout.tools.base import ToolOutcome
from rollout.v1 import rollout_pb2 as pb

_ROWS = ("prompt_ids", "response_ids", "response_mask", "logprobs", "segments", "earlier")
"""Fields of a dump's line that a message has as numbers."""


def trajectory_message(result: TrajectoryResult, record: Mapping[str, Any], trajectory_id: str) -> pb.Trajectory:
    """`record`: its line of a dump; `trajectory_id`: the trainer's. Numbers that are not finite are a ValueError."""
    message = pb.Trajectory(
        id=trajectory_id,
        group=result.uid,
        rows=map(_row_message, result.parts),
        masked=result.masked,
        record_json=json.dumps({name: record[name] for name in record if name not in _ROWS}, allow_nan=False),
    )
    if result.reward is not None:
        message.reward = result.reward.value
    return message


def trajectory_result(message: pb.Trajectory) -> TrajectoryResult:
    """The result, as the service had it. ValueError, KeyError or TypeError for a message that is none."""
    record: dict[str, Any] = json.loads(message.record_json)
    *earlier, last = map(_row, message.rows)
    state, cause = RequestState(record["state"]), Cause(record["cause"])
    reward = None
    if message.HasField("reward"):
        turns = {turn: value for turn, value in enumerate(record["turn_rewards"], 1) if value}
        reward = Reward(message.reward, record["reward_parts"], turns)
    branch = record["branch_point"]
    return TrajectoryResult(
        trajectory_id=record["request_id"],
        uid=message.group,
        index=record["index"],
        trajectory=last,
        messages=tuple(record["messages"]),
        tool_calls=tuple(
            ToolCallRecord(**{**call, "outcome": ToolOutcome(call["outcome"])}) for call in record["tool_calls"]
        ),
        state=state,
        stop_reason=StopReason(record["stop_reason"]),
        cause=cause,
        turns=record["turns"],
        sampling=_sampling(record["sampling"]),
        times=PhaseTimes(**record["timings"]),
        started_at=record["started_at"],
        turn_records=tuple(
            TurnRecord(**{**turn, "finish": FinishReason(turn["finish"])}) for turn in record["turn_records"]
        ),
        attempts=record["attempts"],
        error=record["error"],
        reward=reward,
        unscored=message.masked and state is not RequestState.FAILED,
        tool_rewards=record["tool_rewards"],
        parent_id=record["parent_id"],
        branch_point=None if branch is None else BranchPoint(**branch),
        earlier=tuple(earlier),
    )


def _sampling(record: Mapping[str, Any]) -> SamplingParams:
    return SamplingParams(**{**record, "stop_token_ids": tuple(record["stop_token_ids"])})


def _row_message(part: Trajectory) -> pb.TokenRow:
    return pb.TokenRow(
        prompt_ids=part.prompt_ids,
        response_ids=part.response_ids,
        logprobs=part.logprobs,
        segments=map(_segment_message, part.segments[1:]),
    )


def _segment_message(segment: Segment) -> pb.TokenSegment:
    sampled = segment.kind is SegmentKind.SAMPLED
    return pb.TokenSegment(length=len(segment.ids), sampled=sampled, weight_version=segment.weight_version or "")


def _row(row: pb.TokenRow) -> Trajectory:
    return Trajectory((Segment(SegmentKind.PROMPT, tuple(row.prompt_ids)), *_segments(row)))


def _segments(row: pb.TokenRow) -> Iterable[Segment]:
    ids, logprobs, begin = tuple(row.response_ids), tuple(row.logprobs), 0
    for each in row.segments:
        part = slice(begin, begin := begin + each.length)
        if each.sampled:
            yield Segment(SegmentKind.SAMPLED, ids[part], logprobs[part], each.weight_version)
        else:
            yield Segment(SegmentKind.TOOL, ids[part])
    if begin != len(ids):
        raise ValueError(f"segments of {begin} ids stand beside {len(ids)}")
