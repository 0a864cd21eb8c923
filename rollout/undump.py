"""The way back from a dump: a record as the trajectory that it was made of. Pure.

What is scored, measured or shown of a live trajectory can so be scored, measured or shown of a dumped one. Exact: the
record of what comes back is the record. Dumps of verl's own, which have no segments, are refused by `read_dump`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from executor_service import Cause
from rollout.dump import DumpError
from rollout.engines.base import FinishReason, SamplingParams
from rollout.loop.limits import StopReason
from rollout.loop.results import BranchPoint, PhaseTimes, ToolCallRecord, TrajectoryResult, TurnRecord
from rollout.loop.state import RequestState
from rollout.rewards.base import Reward
from rollout.tokens.segment import Segment, SegmentError, SegmentKind
from rollout.tokens.trajectory import Trajectory
from rollout.tools.base import ToolOutcome

__all__ = ["result_of"]

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


def result_of(record: Mapping[str, Any]) -> TrajectoryResult:
    """Of a record that `read_dump` gave. Raises DumpError naming the field that is missing or wrong.

    Fields that older dumps lack have their defaults; what the reward gave to single turns is in `turn_rewards`.
    """
    state = _member(RequestState, record.get("state", "completed"), "state")
    branch = record.get("branch_point")
    try:
        return TrajectoryResult(
            trajectory_id=record["request_id"],
            uid=record["uid"],
            index=record.get("index", 0),
            trajectory=_trajectory(record),
            messages=tuple(record["messages"]),
            tool_calls=tuple(_call(each) for each in record["tool_calls"]),
            state=state,
            stop_reason=_member(StopReason, record["stop_reason"], "stop_reason"),
            cause=_member(Cause, record["cause"], "cause"),
            turns=record.get("turns", 0),
            sampling=_made(SamplingParams, record["sampling"], "sampling", stop_token_ids=tuple),
            times=_made(PhaseTimes, record.get("timings", {}), "timings"),
            started_at=record.get("started_at"),
            turn_records=tuple(
                _made(TurnRecord, each, "turn_records", finish=FinishReason) for each in record.get("turn_records", ())
            ),
            attempts=record.get("attempts", 1),
            error=record.get("error"),
            reward=_reward(record),
            unscored=record["masked"] and state is not RequestState.FAILED,
            tool_rewards=record.get("tool_rewards") or {},
            parent_id=record.get("parent_id"),
            earlier=tuple(map(_trajectory, record.get("earlier", ()))),
            branch_point=None if branch is None else _made(BranchPoint, branch, "branch_point"),
        )
    except (SegmentError, ValueError, TypeError) as error:
        raise DumpError(f"trajectory {record['request_id']}: {error}") from None


def _trajectory(record: Mapping[str, Any]) -> Trajectory:
    """The segments, cut out of the ids."""
    ids = (*record["prompt_ids"], *record["response_ids"])
    before = len(record["prompt_ids"])
    segments, position = [], 0
    for each in record["segments"]:
        kind, end = _member(SegmentKind, each["kind"], "segments.kind"), position + each["length"]
        logprobs = None
        if kind is SegmentKind.SAMPLED:
            logprobs = tuple(record["logprobs"][position - before : end - before])
        segments.append(Segment(kind, ids[position:end], logprobs, each["weight_version"]))
        position = end
    return Trajectory(tuple(segments))


def _reward(record: Mapping[str, Any]) -> Reward | None:
    if record["score"] is None:
        return None
    turns = {turn: value for turn, value in enumerate(record.get("turn_rewards", ()), 1) if value}
    return Reward(record["score"], record.get("reward_parts", {}), turns)


def _call(each: Mapping[str, Any]) -> ToolCallRecord:
    return _made(ToolCallRecord, each, "tool_calls", outcome=ToolOutcome)


def _made(kind: Callable[..., T], fields: Mapping[str, Any], where: str, **convert: Callable[[Any], Any]) -> T:
    """A dataclass of a record's part; what it has no field for is left out."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {name: convert.get(name, _same)(value) for name, value in fields.items() if name in names}
    try:
        return kind(**values)
    except TypeError as error:
        raise DumpError(f"{where}: {error}") from None


def _same(value: Any) -> Any:
    return value


def _member(kind: type[E], value: Any, where: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise DumpError(f"{where} is {value!r}, must be one of: {', '.join(str(m.value) for m in kind)}") from None
