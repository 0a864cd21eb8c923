"""Takes care that a run learns from its own weights alone, and is judged by them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from executor_service import Cause
from rollout.loop.limits import StopReason
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import Loop
from rollout.loop.state import RequestState
from rollout.loop.task import Task
from rollout.tokens.segment import SegmentKind
from rollout.training.sync import is_version

__all__ = ["OwnWeights"]


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """A loop whose trajectories have failed by the service where other weights than the run's sampled of them: a server
    that was started again has those that it was first started with, until it is given others."""

    loop: Loop

    async def run(self, task: Task, *, index: int, seed: int | None, attempt: int = 1) -> TrajectoryResult:
        result = await self.loop.run(task, index=index, seed=seed, attempt=attempt)
        other = _other(result)
        if result.masked or other is None:
            return result
        return replace(
            result,
            state=RequestState.FAILED,
            stop_reason=StopReason.INFRA,
            cause=Cause.INFRA,
            error=f"weights {other!r} sampled, which are none of this run's: a server was started again",
        )


def _other(result: TrajectoryResult) -> str | None:
    """The first version that is none of a training run's."""
    versions = (
        segment.weight_version
        for part in result.parts
        for segment in part.segments
        if segment.kind is SegmentKind.SAMPLED
    )
    return next((version for version in versions if version is not None and not is_version(version)), None)
