"""Trajectories as SkyRL's `GeneratorOutput`: a dictionary of lists, which needs nothing of SkyRL to be made.

Invariants: rows are in the order of the results, one for each (and for each part of one whose conversation was
condensed, in SkyRL's step-wise form: beside each other, `is_last_step` at the last, the same reward on all), whose ids,
mask and logprobs are the trajectory's; a trajectory that the service failed is a row with an all-zero loss mask, reward
0.0 and the stop reason `infra`. SkyRL asks for as many rows as prompts, so nothing can be left out, and its estimators
see the 0.0 of such a row in its group's mean, unless all rows of the group are masked: that is what `mask_groups` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairbox.errors import FieldError, FieldErrors
from rollout.batch import check_results
from rollout.loop.results import TrajectoryResult
from rollout.loop.rows import rows_of
from rollout.loop.rows import token_rewards as spread_rewards
from rollout.metrics import RolloutMetrics


def generator_output(
    results: Sequence[TrajectoryResult],
    *,
    pad_token_id: int,
    trajectory_ids: Sequence[Any] | None = None,
    mask_groups: bool = True,
    token_rewards: bool = False,
) -> dict[str, Any]:
    """A `GeneratorOutput` of SkyRL 0.4 (which 0.3 takes too), as its `validate_generator_output` wants it.

    `trajectory_ids` are SkyRL's own `TrajectoryID`s, one for each result. With `mask_groups` the whole group (uid) of a
    trajectory that the service failed is masked: its mean can't be had without the one that is missing. With
    `token_rewards` each reward stands at the last sampled id, and what belongs to a turn at that turn's last one, else
    there is one number a row. A trajectory without response gets one `pad_token_id` that is not trained
    on. Raises FieldErrors.
    """
    check_results(results, pad_token_id)
    if trajectory_ids is not None and len(trajectory_ids) != len(results):
        problem = f"has {len(trajectory_ids)} for {len(results)} results"
        raise FieldErrors([FieldError("trajectory_ids", problem)])
    metrics = RolloutMetrics()
    for result in results:
        metrics.add(result)
    counts = [len(result.parts) for result in results]
    steps = any(count > 1 for count in counts)
    if steps and trajectory_ids is None:
        raise FieldErrors([FieldError("trajectory_ids", "are missing, and some trajectories have several rows")])
    if steps and trajectory_ids is not None:
        trajectory_ids = [each for each, count in zip(trajectory_ids, counts, strict=True) for _ in range(count)]
    results, last = rows_of(results)
    lost = {result.uid for result in results if result.masked} if mask_groups else set()
    rows = [_row(result, pad_token_id, masked=result.masked or result.uid in lost) for result in results]
    unused = sum(not any(mask) for _, mask, _, _ in rows)
    rewards: list[Any] = [reward for _, _, _, reward in rows]
    if token_rewards:
        rewards = [_spread(result, mask, reward) for result, (_, mask, _, reward) in zip(results, rows, strict=True)]
    return {
        "prompt_token_ids": [list(result.trajectory.prompt_ids) for result in results],
        "response_ids": [ids for ids, _, _, _ in rows],
        "rewards": rewards,
        "loss_masks": [mask for _, mask, _, _ in rows],
        "stop_reasons": [str(result.stop_reason) for result in results],
        "rollout_metrics": metrics.flat() | {"fairbox/not_trained_on": unused / len(rows)},
        "rollout_logprobs": [logprobs for _, _, logprobs, _ in rows],
        "trajectory_ids": None if trajectory_ids is None else list(trajectory_ids),
        "trajectory_generation_times": [result.times.total_s for result in results],
        "trajectory_time_splits": {
            "llm": [result.times.queue_s + result.times.engine_s for result in results],
            "env": [result.times.tool_wait_s + result.times.tool_run_s for result in results],
        },
        "rollout_expert_indices": None,
        "is_last_step": last if steps else None,
        "env_metrics": [_env_metrics(result) for result in results],
        "pixel_values": None,
        "image_grid_thw": None,
    }


Row = tuple[list[int], list[int], list[float], float]
"""Response ids, loss mask, logprobs, reward."""


def _row(result: TrajectoryResult, pad: int, *, masked: bool) -> Row:
    trajectory = result.trajectory
    ids = list(trajectory.response_ids)
    reward = 0.0 if result.masked or result.reward is None else result.reward.value
    if not ids:
        return [pad], [0], [0.0], reward
    mask = [0] * len(ids) if masked else list(trajectory.response_mask)
    return ids, mask, list(trajectory.logprobs), reward


def _spread(result: TrajectoryResult, mask: list[int], reward: float) -> list[float]:
    """Rewards by id: those of a turn at its last sampled id, the rest at the last one of all; at the last place if
    nothing was sampled."""
    if any(result.trajectory.response_mask):
        return list(spread_rewards(result))
    return [0.0] * (len(mask) - 1) + [reward]


def _env_metrics(result: TrajectoryResult) -> dict[str, Any]:
    return {"turns": result.turns, "tool_calls": len(result.tool_calls), "infra": int(result.masked)}
