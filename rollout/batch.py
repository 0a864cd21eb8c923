"""Trajectories as the padded tensors that a trainer takes.

Invariants: no row is cut, and one that does not fit is an error that names it; `response_mask` is 1 exactly on sampled
ids of rows that count, and where it is 0 the logprob is 0.0 and the weight version -1; a reward is finite, and 0.0 with
`scored` False where there is none; rows keep the order of the results. A masked row has an
all-zero response mask and no reward. What a group's mean may see are the rows with `scored` and `is_last_step` alone: a
trajectory whose conversation was condensed has a row for each of its parts, beside each other.

Torch is imported when a batch is made, and not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from executor_service import Cause
from fairbox.errors import FieldError, FieldErrors
from rollout.loop.limits import StopReason
from rollout.loop.results import TrajectoryResult
from rollout.loop.rows import rows_of, token_rewards
from rollout.tokens.segment import SegmentKind

if TYPE_CHECKING:
    import torch

NO_VERSION = -1
"""Weight version of ids that no weights sampled, and of padding."""
LARGEST_REWARD = 3.4e38
"""Beyond it a float32 is infinite."""


class MaskedRows(StrEnum):
    """Policies for trajectories that the service failed."""

    KEEP = "keep"
    """They stay as rows with an all-zero response mask, so that the batch keeps its size."""
    DROP = "drop"
    """They are left out."""


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """B rows; P is the width of prompts, R that of responses. Tensors are on the CPU."""

    prompts: torch.Tensor
    """int64 [B, P]: ids, padded on the left."""
    responses: torch.Tensor
    """int64 [B, R]: sampled and tool ids, padded on the right."""
    input_ids: torch.Tensor
    """int64 [B, P + R]: prompts and responses beside each other."""
    attention_mask: torch.Tensor
    """int64 [B, P + R]: 1 on ids, 0 on padding."""
    position_ids: torch.Tensor
    """int64 [B, P + R]: from 0 at the first id of the prompt; 0 on the padding before it, and the last position again
    on the padding behind."""
    response_mask: torch.Tensor
    """int64 [B, R]: 1 on the ids to train on."""
    rollout_log_probs: torch.Tensor
    """float32 [B, R]: the engine's natural logarithms; 0.0 where `response_mask` is 0."""
    weight_versions: torch.Tensor
    """int64 [B, R]: index into `versions`; -1 where `response_mask` is 0."""
    rewards: torch.Tensor
    """float32 [B]: the trajectory's reward; 0.0 where `scored` is False."""
    token_rewards: torch.Tensor
    """float32 [B, R]: the same reward, spread: what belongs to a turn (`Reward.turns`) at that turn's last id to train
    on, the rest at the row's last one, 0.0 elsewhere. Each row adds up to `rewards`, but for a scored row without such
    an id (its prompt filled the context), which has it in `rewards` alone."""
    scored: torch.Tensor
    """bool [B]: whether there is a reward."""
    masked: torch.Tensor
    """bool [B]: whether the service failed it, or nothing could score it."""
    is_last_step: torch.Tensor
    """bool [B]: whether it is the last row of its trajectory; the others have the same reward, and are counted in no
    mean."""
    groups: torch.Tensor
    """int64 [B]: rows of one uid share a number, counted from 0 in the order of their first rows."""
    turns: torch.Tensor
    """int64 [B]: turns of the assistant."""
    versions: tuple[str, ...]
    """Names of the weights, in the order of their first use."""
    uids: tuple[str, ...]
    trajectory_ids: tuple[str, ...]
    causes: tuple[Cause, ...]
    stop_reasons: tuple[StopReason, ...]

    @classmethod
    def from_results(
        cls,
        results: Sequence[TrajectoryResult],
        *,
        pad_token_id: int,
        prompt_length: int | None = None,
        response_length: int | None = None,
        masked: MaskedRows = MaskedRows.KEEP,
    ) -> RolloutBatch:
        """Makes a batch. Widths that are None are those of the longest row (and at least 1).

        Raises FieldErrors for rows that are longer than a given width, a bad width or padding id, a reward that is not
        finite, and when no row is left.
        """
        kept = [result for result in results if masked is MaskedRows.KEEP or not result.masked]
        kept, last = rows_of(kept)
        check_results(kept, pad_token_id, prompt_length, response_length)
        rows = [_row(result) for result in kept]
        width = prompt_length or max(1, *(len(row.prompt) for row in rows))
        room = response_length or max(1, *(len(row.response) for row in rows))
        versions = tuple(dict.fromkeys(name for row in rows for name in row.versions if name is not None))
        return _tensors(kept, rows, last, versions, pad_token_id, width, room)

    def __len__(self) -> int:
        return len(self.uids)


@dataclass(frozen=True, slots=True)
class _Row:
    """One trajectory, not padded yet. All but `prompt` have the response's length."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[str | None, ...]
    rewards: tuple[float, ...]


def _row(result: TrajectoryResult) -> _Row:
    trajectory = result.trajectory
    prompt, response = trajectory.prompt_ids, trajectory.response_ids
    if result.masked:
        length = len(response)
        return _Row(prompt, response, (0,) * length, (0.0,) * length, (None,) * length, (0.0,) * length)
    versions = tuple(
        segment.weight_version if segment.kind is SegmentKind.SAMPLED else None
        for segment in trajectory.segments[1:]
        for _ in segment.ids
    )
    return _Row(prompt, response, trajectory.response_mask, trajectory.logprobs, versions, token_rewards(result))


def check_results(
    results: Sequence[TrajectoryResult],
    pad_token_id: int,
    prompt_length: int | None = None,
    response_length: int | None = None,
) -> None:
    """Raises FieldErrors for everything that keeps the results from being rows of a trainer."""
    errors = []
    if not results:
        errors.append(FieldError("results", "leaves no row: it is empty, or everything in it is masked and dropped"))
    if pad_token_id < 0:
        errors.append(FieldError("pad_token_id", f"is {pad_token_id}, must be 0 or more"))
    for name, width in (("prompt_length", prompt_length), ("response_length", response_length)):
        if width is not None and width < 1:
            errors.append(FieldError(name, f"is {width}, must be at least 1"))
    for index, result in enumerate(results):
        where, trajectory = f"results[{index}] ({result.trajectory_id})", result.trajectory
        for part, length, width in (
            ("prompt", len(trajectory.prompt_ids), prompt_length),
            ("response", len(trajectory.response_ids), response_length),
        ):
            if width is not None and length > width > 0:
                errors.append(FieldError(where, f"has a {part} of {length} ids, at most {part}_length {width} fit"))
        given = () if result.reward is None else (result.reward.value, *result.reward.turns.values())
        errors += [
            FieldError(where, f"has the reward {value}, must be finite as a float32")
            for value in given
            if not abs(value) <= LARGEST_REWARD
        ]
    if errors:
        raise FieldErrors(errors)


def _tensors(
    results: Sequence[TrajectoryResult],
    rows: Sequence[_Row],
    last: Sequence[bool],
    versions: tuple[str, ...],
    pad: int,
    width: int,
    room: int,
) -> RolloutBatch:
    import torch  # costs seconds, so only where a batch is made

    def left(values: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
        return torch.tensor([[fill] * (width - len(row)) + list(row) for row in values], dtype=torch.int64)

    def right(values: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
        return torch.tensor([list(row) + [fill] * (room - len(row)) for row in values], dtype=torch.int64)

    def floats(values: Sequence[Sequence[float]]) -> torch.Tensor:
        return torch.tensor([[*row, *[0.0] * (room - len(row))] for row in values], dtype=torch.float32)

    number = {name: index for index, name in enumerate(versions)} | {None: NO_VERSION}
    prompts, responses = left([row.prompt for row in rows], pad), right([row.response for row in rows], pad)
    there = (left([[1] * len(row.prompt) for row in rows], 0), right([[1] * len(row.response) for row in rows], 0))
    attention_mask = torch.cat(there, dim=1)
    response_mask = right([row.mask for row in rows], 0)
    rewards = torch.tensor([_reward(result) or 0.0 for result in results], dtype=torch.float32)
    uids = tuple(result.uid for result in results)
    group = {uid: index for index, uid in enumerate(dict.fromkeys(uids))}
    return RolloutBatch(
        prompts=prompts,
        responses=responses,
        input_ids=torch.cat((prompts, responses), dim=1),
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        response_mask=response_mask,
        rollout_log_probs=floats([row.logprobs for row in rows]),
        weight_versions=right([[number[name] for name in row.versions] for row in rows], NO_VERSION),
        rewards=rewards,
        token_rewards=floats([row.rewards for row in rows]),
        scored=torch.tensor([_reward(result) is not None for result in results]),
        masked=torch.tensor([result.masked for result in results]),
        is_last_step=torch.tensor(last),
        groups=torch.tensor([group[uid] for uid in uids], dtype=torch.int64),
        turns=torch.tensor([result.turns for result in results], dtype=torch.int64),
        versions=versions,
        uids=uids,
        trajectory_ids=tuple(result.trajectory_id for result in results),
        causes=tuple(result.cause for result in results),
        stop_reasons=tuple(result.stop_reason for result in results),
    )


def _reward(result: TrajectoryResult) -> float | None:
    return None if result.masked or result.reward is None else result.reward.value
