"""Trajectories as verl's own data: `AgentLoopOutput` for one, `DataProto` for a batch.

Invariants: ids, mask and logprobs are those of the trajectory; nothing is cut; a trajectory that the service failed has
an all-zero response mask, and in a `DataProto` a group of its own, so that no group's mean or deviation sees it,
whichever of verl's estimators computes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fairbox.errors import FieldError, FieldErrors
from rollout.batch import RolloutBatch
from rollout.interop.needs import needs
from rollout.loop.results import TrajectoryResult
from rollout.tokens.segment import SegmentKind

with needs("verl", "0.9.1", "pip install verl==0.9.1"):
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
    from verl.protocol import DataProto


def agent_loop_output(result: TrajectoryResult, *, pad_token_id: int) -> AgentLoopOutput:
    """Return value of verl's `AgentLoopBase.run` for a trajectory.

    `reward_score` is the trajectory's reward, None if it has none (verl then computes it), 0.0 if it is masked. A
    trajectory without response gets one `pad_token_id` that is not trained on, because verl can't hold an empty one.
    `extra_fields` has `tool_rewards` (a list), `turn_scores` (the part of the reward that belongs to each turn; empty
    if none does), `min_global_steps` and `max_global_steps` if weight versions are verl's steps, and what is fairbox's
    own as `fairbox_*`. Raises FieldErrors for a trajectory that was condensed.
    """
    trajectory = result.trajectory
    if result.earlier:
        parts = f"has {len(result.parts)} parts, because it was condensed, and this is one row"
        raise FieldErrors([FieldError(result.trajectory_id, parts)])
    response = trajectory.response_ids or (pad_token_id,)
    mask = (0,) * len(response) if result.masked or not trajectory.response_ids else trajectory.response_mask
    times, reward = result.times, None if result.reward is None else result.reward.value
    answers = sum(segment.kind is SegmentKind.TOOL for segment in trajectory.segments)
    return AgentLoopOutput(
        prompt_ids=list(trajectory.prompt_ids),
        response_ids=list(response),
        response_mask=list(mask),
        response_logprobs=list(trajectory.logprobs or (0.0,)),
        reward_score=0.0 if result.masked else reward,
        num_turns=1 + result.turns + answers,
        metrics=AgentLoopMetrics(
            generate_sequences=times.queue_s + times.engine_s, tool_calls=times.tool_wait_s + times.tool_run_s
        ),
        extra_fields=_extra_fields(result),
    )


def data_proto(batch: RolloutBatch, *, meta_info: dict[str, Any] | None = None) -> DataProto:
    """The batch as verl's trainers take it from a rollout, checked by `DataProto` itself.

    Tensors (B rows): `prompts`, `responses`, `input_ids`, `attention_mask`, `position_ids`, `response_mask` int64,
    `rollout_log_probs` and `rm_scores` float32. `non_tensor_batch`: `uid`, `__num_turns__`, `request_id`, `masked`,
    `scored`, `cause`, `is_last_step`, `stop_reason`. The uid of a masked row is its own: `UID/masked/TRAJECTORY`.
    """
    names = ("prompts", "responses", "input_ids", "attention_mask", "position_ids", "response_mask")
    rows = zip(batch.uids, batch.masked.tolist(), batch.trajectory_ids, strict=True)
    uids = [f"{uid}/masked/{trajectory_id}" if masked else uid for uid, masked, trajectory_id in rows]
    return DataProto.from_dict(
        tensors={name: getattr(batch, name) for name in names}
        | {"rollout_log_probs": batch.rollout_log_probs, "rm_scores": batch.token_rewards},
        non_tensors={
            "uid": np.array(uids, dtype=object),
            "__num_turns__": (2 * batch.turns).clamp(min=1).numpy().astype(np.int32),
            "request_id": np.array(batch.trajectory_ids, dtype=object),
            "masked": batch.masked.numpy(),
            "scored": batch.scored.numpy(),
            "cause": np.array([str(cause) for cause in batch.causes], dtype=object),
            "is_last_step": batch.is_last_step.numpy(),
            "stop_reason": np.array([str(reason) for reason in batch.stop_reasons], dtype=object),
        },
        meta_info=meta_info,
    )


def _extra_fields(result: TrajectoryResult) -> dict[str, Any]:
    segments = result.trajectory.segments
    versions = list(dict.fromkeys(s.weight_version for s in segments if s.weight_version is not None))
    steps = [step for version in versions for step in _global_steps(version)]
    known = bool(steps) and all(_global_steps(version) for version in versions)
    return {
        "turn_scores": _turn_scores(result),
        "tool_rewards": list(result.tool_rewards.values()),
        "min_global_steps": min(steps) if known else None,
        "max_global_steps": max(steps) if known else None,
        "fairbox_trajectory_id": result.trajectory_id,
        "fairbox_stop_reason": str(result.stop_reason),
        "fairbox_cause": str(result.cause),
        "fairbox_masked": result.masked,
        "fairbox_attempts": result.attempts,
        "fairbox_reward_parts": {} if result.reward is None else dict(result.reward.parts),
        "fairbox_infra": result.error if result.masked else None,
    }


def _turn_scores(result: TrajectoryResult) -> list[float]:
    """Part of the reward that belongs to each turn; empty if none belongs to a turn."""
    turns = {} if result.masked or result.reward is None else result.reward.turns
    return [turns.get(turn, 0.0) for turn in range(1, result.turns + 1)] if turns else []


def _global_steps(version: str) -> tuple[int, ...]:
    """The steps that a weight version names: one, or the first and the last (`4..6`); none if it is not verl's."""
    parts = version.split("..")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()
